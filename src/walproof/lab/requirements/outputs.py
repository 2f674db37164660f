"""What probes printed, as a text that can be kept, sent and read again. Pure; runs none."""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Output:
    """What one probe printed, and its exit code; 127 where there is no such file or program."""

    text: str
    code: int = 0

    @property
    def worked(self) -> bool:
        """Whether it ended well."""
        return self.code == 0


Outputs = Mapping[str, Output]
MISSING = 127
_HEADING = re.compile(r"^--- (?P<name>.+?)(?: \[exit (?P<code>\d+)\])?$")


def as_text(outputs: Outputs) -> str:
    """The outputs, a heading before each.

    >>> print(as_text({"uname -m": Output("x86_64"), "losetup -f": Output("", 127)}), end="")
    --- uname -m
    x86_64
    --- losetup -f [exit 127]
    """
    lines = []
    for name, output in outputs.items():
        lines.append(f"--- {name}" + (f" [exit {output.code}]" if output.code else ""))
        lines += [output.text] if output.text else []
    return "".join(f"{line}\n" for line in lines)


def from_text(text: str) -> dict[str, Output]:
    """The inverse of `as_text`; lines before the first heading are remarks."""
    found: dict[str, Output] = {}
    name, code, lines = "", 0, list[str]()
    for line in [*text.splitlines(), "--- end"]:
        if (heading := _HEADING.match(line)) is None:
            lines.append(line)
            continue
        if name:
            found[name] = Output("\n".join(lines).strip("\n"), code)
        name, code, lines = heading["name"], int(heading["code"] or 0), []
    return found
