"""Takes secrets out of what was typed, by libpq's own parser: addresses of clusters, command lines, text of logs.

What it gives back may be written down, shown and forwarded. Where it cannot tell the secret part, it shows nothing.
"""

import re
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

HIDDEN = "***"
UNREADABLE = "(an address that is not shown: it may hold a password)"
_NAME = r"[a-z_]*(?:passw|secret|token|scram_)\w*"
_SUSPECT = re.compile(r"pas+w|pwd|secret|token|scram_|://(?:(?!://).)*[@%]|^[^\s=:]*:.*@", re.IGNORECASE | re.DOTALL)
_WORD = r"""\S*[^\s'",;:)}\]]"""
"""Up to a space, without the quotes and brackets that close something around it. A password may hold any of them."""
_END = r"""(?![^\s'",;:)}\]\\&])"""
"""After a closing quote. A letter there says that it closed nothing: the rest of the line may be the password's."""
_VALUE = rf"""
    \\"(?:[^"\\\n]|\\{{4}}|\\{{3}}"|\\\\\w)*+\\"{_END}           # JSON's within JSON
  | ''(?:[^'\\\n]|\\''|\\[^'\n])++''{_END}                       # libpq's within a string of SQL
  | (?:[en]|u&)?'(?:[^'\\\n]|''|\\''?|\\[^'\n])*+'{_END}         # SQL's, whether or not a backslash escapes there
  | "(?:[^"\\\n]|""|\\.)*+"{_END}
  | (?P<tag>\$\w*\$)(?:.|\n){{0,999}}?(?P=tag)
  | (?:\\?"|(?:[en]|u&)?'|\$\w*\$).*                             # cut off, or not understood: all of the line
  | (?:\\.|[^\s\\])*[^\s'",;:)}}\]]
"""
_SECRET = (
    r"passw(?:or)?d|passphrase|\bpwd|api[_-]?key|secret[_-]access[_-]key|(?:key|client)[_-]secret"
    r"|scram_(?:client|server|stored)_key|token"
)
_IN_TEXT = re.compile(
    rf"""(?P<name>
        (?P<query>[?&][\w.%-]*)? (?:{_SECRET}) (?:\\?['"])? \s*(?:=>(?=[\s'"])|[=:])\s*
      | \bidentified\s+by\s+(?=['"])
      | \bpassword (?: \s+(?=') | \s*(?=[en]'|u&'|\$\w*\$) | (?-i:(?<=PASSWORD))(?=') )
    ) (?: (?(query)[^\s&]*[^\s&'",;:)}}\]]|(?:{_VALUE})) )""",
    re.IGNORECASE | re.VERBOSE,
)
_IN_HEADER = re.compile(
    rf"""(authorization (?:\\?['"])? \s*[=:][\s\\'"[(]*+) (?:digest\s.*|(?:[a-z]+[ ]+)?{_WORD})
      | (\bbearer\s+|\b(?-i:Basic|BASIC|basic(?=\s+\S*[A-Z0-9=]))\s+)
        (?!(?:auth|authentication|authorization|credentials?|tokens?)\b|\S*realm=) {_WORD}""",
    re.IGNORECASE | re.VERBOSE,
)
_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}://[^\s:/@]*):\S{0,999}@", re.IGNORECASE)


@cache
def _secret_words() -> frozenset[str]:
    """The parameters that libpq itself marks as not to be shown."""
    import psycopg  # here and below: most commands name no address, and need not load it

    marked = {o.keyword.decode() for o in psycopg.pq.Conninfo.get_defaults() if o.dispchar == b"*"}
    return frozenset(
        marked | {"password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret"}
    )


def without_secrets(address: str) -> str:
    """The text of a `--target` without passwords; itself where it holds none.

    >>> without_secrets("postgresql://u:pw@a,b/app?sslmode=require")
    'postgresql://u@a,b/app?sslmode=require'
    >>> without_secrets("host=a password = 'x y'")
    'host=a'
    """
    if not _SUSPECT.search(address):
        return address
    if address.lower().startswith(("http://", "https://")):
        return _http(address)
    if "=" not in address and "://" not in address:
        return UNREADABLE if re.match(r"[^:]*:.*@", address, re.DOTALL) else address
    parsed = _parsed(address)
    shown = {name: value for name, value in (parsed or {}).items() if name not in _secret_words()}
    if parsed is None or not _plain(shown):
        return UNREADABLE
    if shown == parsed:
        return address
    url = _url(address) if "://" in address else None
    if url is not None and _parsed(url) == shown:
        return url
    from psycopg.conninfo import make_conninfo

    as_typed = {name: shown[name] for name in sorted(shown, key=address.find)}
    return make_conninfo("", **as_typed) or "host=localhost"


def hidden_in(argument: str) -> str:
    """One word of a command line as it may be written down: itself, or with its address redacted.

    >>> hidden_in("--target=postgresql://u:pw@a/app")
    '--target=postgresql://u@a/app'
    """
    option, equals, value = argument.partition("=")
    if argument.startswith("--") and equals:
        return f"{option}={without_secrets(value)}"
    return without_secrets(argument)


def command_line(arguments: Sequence[str]) -> str:
    """A walproof command as it may be recorded, ready for a shell."""
    return shlex.join(["walproof", *map(hidden_in, arguments)])


def in_text(text: str, arguments: Sequence[str] = ()) -> str:
    """Text of others (a log, an error) with passwords replaced by ***, and the `arguments` as they may be shown.

    >>> in_text("primary_conninfo = 'user=r password=geheim'")
    "primary_conninfo = 'user=r password=***'"
    """
    for argument in arguments:
        hidden = hidden_in(argument)
        if hidden == argument:
            continue
        word = argument.partition("=")[2] if argument.startswith("--") else argument
        text = text.replace(argument, hidden)
        # Without its option, and as a path shows it.
        for typed in (word, str(Path(word))):
            text = text.replace(typed, without_secrets(word))
    text = _IN_URL.sub(rf"\1:{HIDDEN}@", text)
    text = _IN_HEADER.sub(rf"\1\2{HIDDEN}", text)
    return _IN_TEXT.sub(rf"\g<name>{HIDDEN}", text)


def _http(address: str) -> str:
    head, mark, tail = address.partition("://")
    # A password may hold "/" or "@", unquoted: everything up to the last "@" is taken for user and password.
    _, at, host = tail.rpartition("@")
    try:
        parts = urlsplit(f"{head}{mark}{host if at else tail}")
        kept = [
            (n, v) for n, v in parse_qsl(parts.query, keep_blank_values=True) if not re.match(_NAME, n, re.IGNORECASE)
        ]
        return urlunsplit(parts._replace(query=urlencode(kept)))
    except ValueError:
        return UNREADABLE


def _plain(shown: dict[str, str]) -> bool:
    """Whether no piece of a password can have slipped into another parameter: an "@" or a port of letters."""
    ports = shown.get("port", "").split(",")
    odd = any("@" in shown.get(name, "") for name in ("host", "hostaddr", "dbname"))
    return not odd and all(port == "" or port.isdecimal() for port in ports)


def _url(address: str) -> str | None:
    try:
        parts = urlsplit(address)
    except ValueError:
        return None
    info, at, hosts = parts.netloc.rpartition("@")
    words = [(n, v) for n, v in parse_qsl(parts.query, keep_blank_values=True) if n not in _secret_words()]
    user = info.partition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{user}{at if user else ''}{hosts}", query=urlencode(words)))


def _parsed(address: str) -> dict[str, str] | None:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        return {name: str(value) for name, value in conninfo_to_dict(address).items()}
    except psycopg.Error:
        return None
