"""What one check is for: why, the evidence one can make oneself, and how to take its fix back. Pure."""

import re

from walproof.advising.doctor.catalogue import CATALOGUE
from walproof.errors import UsageError

_THREAD = re.compile(r"\b(patroni|cloudnative-pg)#([0-9]+)")
_OWNERS = {"patroni": "patroni/patroni", "cloudnative-pg": "cloudnative-pg/cloudnative-pg"}
_UNDO = {
    "patroni": "patronictl edit-config --set KEY=FORMER --force; before the fix, patronictl show-config has it",
    "cnpg": "kubectl patch cluster with the former value, or revert the commit that set another",
    "haproxy": "put the former line back, haproxy -c -f haproxy.cfg, then reload HAProxy",
    "pgbouncer": "put the former value back, then RELOAD on PgBouncer's console",
    "settings": "ALTER SYSTEM RESET NAME; SELECT pg_reload_conf(); or the former line of the file, and a reload",
}


def explanation(name: str) -> dict[str, str]:
    """Its texts by label; "" for evidence that there is none of. UsageError for an unknown check."""
    check = next((one for one in CATALOGUE if one.id == name), None)
    if check is None:
        raise UsageError(f"{name!r} is no check of the doctor", "walproof doctor --list")
    pitfalls, drill = check.shown.partition(";")[::2]
    threads = [f"https://github.com/{_OWNERS[m[1]]}/issues/{m[2]}" for m in _THREAD.finditer(check.could_cost)]
    part = check.files.split()[0]
    return {
        "check": f"{check.id} ({check.severity}): {check.title}",
        "why": check.could_cost,
        "source": check.source,
        "pitfall": f"walproof prove --pitfall {pitfalls}" if pitfalls else "",
        "drill": f"walproof prove {drill.strip()}" if drill else "",
        "thread": ", ".join(threads),
        "caused by": check.seed,
        "in files": "not checked: " + check.files if check.files.startswith("live: ") else f"needs: {check.files}",
        "undo": _UNDO.get(part, _UNDO["settings"]),
    }
