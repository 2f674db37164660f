"""A pgbench script as pgbench's scanner reads it, and the commit level put into its transaction by SET LOCAL. Pure.

Only a script that is surely one transaction is taken; any other is refused with the reason, never changed silently."""

import re
from dataclasses import dataclass

from walproof.errors import UsageError
from walproof.model.guarantee import Level

_SKIPPED = re.compile(
    r"""
    (?P<comment>--[^\n]*)
  | (?P<block>/\*)
  | (?P<escaped>[eE]'(?:[^'\\]|\\.|'')*(?P<escaped_end>')?)
  | (?P<text>'(?:[^']|'')*(?P<text_end>')?)
  | (?P<name>"(?:[^"]|"")*(?P<name_end>")?)
  | (?P<dollar>\$(?P<tag>(?:[A-Za-z_\x80-\U0010ffff][\w\x80-\U0010ffff]*)?)\$)
  | (?P<word>[A-Za-z_\x80-\U0010ffff][\w$\x80-\U0010ffff]*)
  | (?P<number>\d[\w.]*)
    """,
    re.VERBOSE | re.DOTALL,
)
_META = re.compile(r"\\([A-Za-z]*)(?:[^\n\\]|\\(?!\r?\n)|\\\r?\n)*")
_COMMENT_EDGE = re.compile(r"/\*|\*/")


@dataclass(frozen=True, slots=True)
class Statement:
    r"""One SQL statement: where it begins and ends, its words in capitals, the texts of its strings.

    end: position after its last character, without the semicolon. joined: it ends in `\;`, so that pgbench sends the
    next one with it. guarded: it stands between \if and \endif. closed: it ends in a semicolon of its own.
    """

    start: int
    end: int
    words: tuple[str, ...]
    bodies: tuple[str, ...] = ()
    joined: bool = False
    guarded: bool = False
    closed: bool = True


@dataclass(frozen=True, slots=True)
class ScriptParts:
    r"""Statements in order, the names of the backslash commands, and where each command of pgbench's begins.

    A command is a backslash command (\gset and \aset belong to their statement), or statements that `\;` joins.
    """

    statements: tuple[Statement, ...]
    commands: tuple[str, ...]
    places: tuple[int, ...]


def script_parts(text: str) -> ScriptParts:
    r"""The parts of a script; UsageError when a quote, comment or parenthesis is not closed.

    >>> [s.words for s in script_parts("\\set a 1\nBEGIN; SELECT 'END;', :a;\nEND;").statements]
    [('BEGIN',), ('SELECT', 'A'), ('END',)]
    """
    scanner = _Scanner(text)
    scanner.run()
    return ScriptParts(tuple(scanner.statements), tuple(scanner.commands), tuple(scanner.places))


class _Scanner:
    """The position in a script and the statement being read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.statements: list[Statement] = []
        self.commands: list[str] = []
        self.places: list[int] = []
        self.joins: int | None = None
        self.guards = 0
        self._begin()

    def _begin(self) -> None:
        self.start: int | None = None
        self.last = 0
        self.words: list[str] = []
        self.bodies: list[str] = []
        self.parentheses = 0

    def run(self) -> None:
        while self.position < len(self.text):
            self._step()
        self._end(joined=False, closed=False)

    def _step(self) -> None:
        here = self.text[self.position]
        if here == "\\":
            self._backslash()
        elif here == ";" and not self.parentheses:
            self._end(joined=False, closed=True)
            self.position += 1
        elif match := _SKIPPED.match(self.text, self.position):
            self._skip(match)
        else:
            if not here.isspace():
                self.start = self.position if self.start is None else self.start
                self.last = self.position + 1
                self.parentheses = max(0, self.parentheses + (here == "(") - (here == ")"))
            self.position += 1

    def _skip(self, match: re.Match[str]) -> None:
        """A comment, a quoted piece or a word."""
        kind = str(match.lastgroup).removesuffix("_end")
        self.position = match.end()
        if kind == "comment":
            return
        if kind == "block":
            self._block_comment()
            return
        self.start = match.start() if self.start is None else self.start
        if match["word"]:
            self.words.append(match["word"].upper())
        elif match["dollar"] is not None:
            self._dollar(match["dollar"])
        elif match["number"] is None:
            self._quoted(match)
        self.last = self.position

    def _quoted(self, match: re.Match[str]) -> None:
        kind = next(kind for kind in ("escaped", "text", "name") if match[kind] is not None)
        if match[f"{kind}_end"] is None:
            raise _open("quote", self.text, match.start())
        if kind != "name":
            self.bodies.append(match[kind])
        else:
            self.words.append(match[kind])

    def _dollar(self, tag: str) -> None:
        close = self.text.find(tag, self.position)
        if close < 0:
            raise _open("dollar quote", self.text, self.position)
        self.bodies.append(self.text[self.position : close])
        self.position = close + len(tag)

    def _block_comment(self) -> None:
        opened, depth = self.position, 1
        while depth:
            edge = _COMMENT_EDGE.search(self.text, self.position)
            if edge is None:
                raise _open("comment", self.text, opened)
            depth += 1 if edge[0] == "/*" else -1
            self.position = edge.end()

    def _backslash(self) -> None:
        if self.text[self.position : self.position + 2] in ("\\;", "\\:"):
            if self.text[self.position + 1] == ";":
                self._end(joined=True, closed=True)
            self.position += 2
            return
        # What stands before a backslash command is a statement of its own: SELECT … \gset.
        self._end(joined=False, closed=True)
        match = _META.match(self.text, self.position)
        name = match[1].lower() if match else ""
        self.places += [] if name in ("gset", "aset") else [self.position]
        self.position = match.end() if match else self.position + 1
        self.commands.append(name)
        self.guards += (name == "if") - (name == "endif")

    def _end(self, *, joined: bool, closed: bool) -> None:
        if self.parentheses and self.start is not None:
            raise _open("parenthesis", self.text, self.start)
        if self.start is not None:
            first = self.start if self.joins is None else self.joins
            self.joins = first if joined else None
            self.places += [] if joined else [first]
            words, bodies = tuple(self.words), tuple(self.bodies)
            self.statements.append(
                Statement(self.start, self.last, words, bodies, joined=joined, guarded=self.guards > 0, closed=closed)
            )
        self._begin()


def _open(what: str, text: str, at: int) -> UsageError:
    line = text.count("\n", 0, at) + 1
    return UsageError(
        f"the script's {what} opened on line {line} is not closed", "see pgbench's manual, Custom Scripts"
    )


_ENDS = ("COMMIT", "END")
_NOT_WITHIN = ("VACUUM", "CALL", "CHECKPOINT")
_ENDS_WITHIN = re.compile(r"\b(COMMIT|ROLLBACK)\b", re.IGNORECASE)
_OWN_LEVEL = re.compile(r"\bsynchronous_commit\b", re.IGNORECASE)
_HINT = "write one transaction a script, BEGIN; … END;, or measure it without a pool and without --mix"


def check_script(text: str, name: str) -> ScriptParts:
    """The script's parts; UsageError when it holds no SQL, cannot be read surely, or sets the commit level itself."""
    parts = script_parts(text)
    if not parts.statements:
        raise UsageError(f"the script {name} holds no SQL", "see pgbench's manual, Custom Scripts")
    for one in parts.statements:
        if _sets_level(one):
            raise UsageError(
                f"the script {name} sets synchronous_commit itself, so every level would be measured as that one",
                "take that statement out: walproof sets the level",
            )
    return parts


def _sets_level(one: Statement) -> bool:
    if one.words[:2] in (("RESET", "ALL"), ("DISCARD", "ALL")):
        return True
    runs = one.words[:1] in (("SET",), ("RESET",), ("DO",), ("CREATE",)) or "SET_CONFIG" in one.words
    return runs and any(map(_OWN_LEVEL.search, (*one.bodies, *one.words)))


def with_level(script: str, level: Level, *, combined: bool) -> str:
    r"""The script with its transaction at that level; UsageError, with the reason, unless it is surely one transaction.

    A script of one statement without BEGIN becomes a transaction. `combined` sends BEGIN and SET LOCAL together, which
    only the simple protocol can: one round trip less.

    >>> print(with_level("BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO t VALUES (1); END;", Level.ON, combined=True))
    BEGIN ISOLATION LEVEL SERIALIZABLE\;SET LOCAL synchronous_commit TO on; INSERT INTO t VALUES (1); END;
    """
    parts = script_parts(script)
    _refuse_what_cannot_be_known(parts)
    setting = f"SET LOCAL synchronous_commit TO {level}"
    begins = [one for one in parts.statements if _begins(one)]
    if begins:
        begin = _the_transaction(parts.statements, begins)
        separator = "\\;" if combined or begin.joined else ";\n"
        return script[: begin.end] + separator + setting + script[begin.end :]
    first, last = _as_one(parts.statements)
    opening = "BEGIN" + ("\\;" if combined else ";\n") + setting + ";\n"
    semicolon = "" if last.closed else ";"
    rest = script[first.start : last.end] + semicolon + script[last.end :].rstrip()
    return script[: first.start] + opening + rest + "\nEND;"


def _begins(one: Statement) -> bool:
    return one.words[:1] == ("BEGIN",) or one.words[:2] == ("START", "TRANSACTION")


def _refused(reason: str) -> UsageError:
    return UsageError(f"the level cannot be set inside this script's transactions: {reason}", _HINT)


def _refuse_what_cannot_be_known(parts: ScriptParts) -> None:
    for one in parts.statements:
        first = one.words[0] if one.words else ""
        if first in _ENDS and "CHAIN" in one.words and "NO" not in one.words:
            raise _refused(f"{first} AND CHAIN begins a transaction of its own")
        if one.words[:2] == ("PREPARE", "TRANSACTION") or "PREPARED" in one.words[:2]:
            raise _refused("it uses prepared transactions")
        if first == "ABORT" or (first == "ROLLBACK" and "TO" not in one.words):
            raise _refused(f"it ends in {first}")
        if first in ("DO", "CREATE") and any(map(_ENDS_WITHIN.search, one.bodies)):
            raise _refused(f"a body of its {first} commits or rolls back")
        if first == "CREATE" and "ATOMIC" in one.words:
            raise _refused("it defines a function with BEGIN ATOMIC")
        if one.guarded and (_begins(one) or first in _ENDS):
            raise _refused(f"its {first} stands between \\if and \\endif")


def _the_transaction(statements: tuple[Statement, ...], begins: list[Statement]) -> Statement:
    """The BEGIN of a script that is one transaction from its first statement to its last."""
    if len(begins) > 1:
        raise _refused(f"it holds {len(begins)} transactions")
    ends = [one for one in statements if one.words[:1] and one.words[0] in _ENDS]
    if len(ends) != 1 or ends[0] is not statements[-1]:
        raise _refused("its transaction does not end once, with its last statement")
    if begins[0] is not statements[0]:
        raise _refused("a statement before BEGIN commits by itself")
    return begins[0]


def _as_one(statements: tuple[Statement, ...]) -> tuple[Statement, Statement]:
    r"""First and last statement of a script without BEGIN, when all of it is sent, and so committed, at once."""
    apart = [one for one in statements[:-1] if not one.joined]
    if apart:
        raise _refused(f"it has no BEGIN, so each of its {len(apart) + 1} statements commits by itself")
    if statements[0].words[:1] and statements[0].words[0] in (*_ENDS, *_NOT_WITHIN):
        raise _refused(f"{statements[0].words[0]} needs, or may end, a transaction of its own")
    if any(one.guarded for one in statements):
        raise _refused("its only statement stands between \\if and \\endif")
    return statements[0], statements[-1]
