r"""A pgbench script as its statements and backslash commands, as pgbench's own scanner (psqlscan.l) reads it. Pure.

Strings, quoted names, dollar quotes and comments are skipped whole, so a BEGIN in the body of a function is none.
"""

import re
from dataclasses import dataclass

from walproof.errors import UsageError

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
    """Statements in order, and the names of the backslash commands."""

    statements: tuple[Statement, ...]
    commands: tuple[str, ...]


def script_parts(text: str) -> ScriptParts:
    r"""The parts of a script; UsageError when a quote, comment or parenthesis is not closed.

    >>> [s.words for s in script_parts("\\set a 1\nBEGIN; SELECT 'END;', :a;\nEND;").statements]
    [('BEGIN',), ('SELECT', 'A'), ('END',)]
    """
    scanner = _Scanner(text)
    scanner.run()
    return ScriptParts(tuple(scanner.statements), tuple(scanner.commands))


class _Scanner:
    """The position in a script and the statement being read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.statements: list[Statement] = []
        self.commands: list[str] = []
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
        elif found := _SKIPPED.match(self.text, self.position):
            self._skip(found)
        else:
            if not here.isspace():
                self.start = self.position if self.start is None else self.start
                self.last = self.position + 1
                self.parentheses = max(0, self.parentheses + (here == "(") - (here == ")"))
            self.position += 1

    def _skip(self, found: re.Match[str]) -> None:
        """A comment, a quoted piece or a word."""
        kind = str(found.lastgroup).removesuffix("_end")
        self.position = found.end()
        if kind == "comment":
            return
        if kind == "block":
            self._block_comment()
            return
        self.start = found.start() if self.start is None else self.start
        if found["word"]:
            self.words.append(found["word"].upper())
        elif found["dollar"] is not None:
            self._dollar(found["dollar"])
        elif found["number"] is None:
            self._quoted(found)
        self.last = self.position

    def _quoted(self, found: re.Match[str]) -> None:
        kind = next(kind for kind in ("escaped", "text", "name") if found[kind] is not None)
        if found[f"{kind}_end"] is None:
            raise _open("quote", self.text, found.start())
        if kind != "name":
            self.bodies.append(found[kind])
        else:
            self.words.append(found[kind])

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
        found = _META.match(self.text, self.position)
        name = found[1].lower() if found else ""
        self.position = found.end() if found else self.position + 1
        self.commands.append(name)
        self.guards += (name == "if") - (name == "endif")

    def _end(self, *, joined: bool, closed: bool) -> None:
        if self.parentheses and self.start is not None:
            raise _open("parenthesis", self.text, self.start)
        if self.start is not None:
            words, bodies = tuple(self.words), tuple(self.bodies)
            self.statements.append(Statement(self.start, self.last, words, bodies, joined, self.guards > 0, closed))
        self._begin()


def _open(what: str, text: str, at: int) -> UsageError:
    line = text.count("\n", 0, at) + 1
    return UsageError(
        f"the script's {what} opened on line {line} is not closed", "see pgbench's manual, Custom Scripts"
    )
