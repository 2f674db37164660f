"""What needs consent by name on an external cluster, and the sentence that says beforehand what will be done."""

from collections.abc import Iterable

from walproof.errors import UsageError

MEANS = {
    "load": "puts load on the cluster, beyond one canary commit a second",
    "config": "changes settings, and reverts them",
    "restart": "restarts PostgreSQL: sessions are lost",
    "switchover": "hands the leadership over: sessions are lost, writes pause",
    "kill": "kills PostgreSQL by your command",
    "not-in-effect": "measures remote levels although no standby is named",
}
"""Words of --allow; the fault names of `prove` are consents of their own."""


def read(text: str | None) -> frozenset[str]:
    """The words of `--allow a,b`; UsageError for one that is no consent.

    >>> sorted(read("config, load"))
    ['config', 'load']
    """
    allowed = frozenset(word.strip() for word in (text or "").split(",") if word.strip())
    unknown = sorted(allowed - set(MEANS))
    if unknown:
        raise UsageError(f"--allow {unknown[0]} is no consent", "the words are " + ", ".join(MEANS))
    return allowed


def require(doing: str, needed: Iterable[str], allowed: frozenset[str], whose: str) -> None:
    """Nothing when every needed word is allowed; else UsageError (exit 2) with the exact flag to add.

    >>> require("applying", ["config"], frozenset({"config"}), "n1")
    """
    wanted = list(dict.fromkeys(needed))
    missing = [word for word in wanted if word not in allowed]
    if missing:
        means = "; ".join(MEANS[word] for word in missing)
        raise UsageError(
            f"{doing} {means} on {whose}, an external cluster, and you did not allow it",
            f"--allow {','.join(dict.fromkeys([*sorted(allowed), *missing]))} consents; --dry-run tells",
        )
