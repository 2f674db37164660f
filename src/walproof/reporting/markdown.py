"""An outline as Markdown for a pull request: tables in place of pictures. Escapes all text of the record."""

import html
import re

from walproof.reporting.outline import Block, Evidence, Figure, Outline, Prose, Table
from walproof.reporting.wording import count, seconds, verdict_name


def markdown(outline: Outline) -> str:
    """The report as one text."""
    parts = [f"# {_safe(outline.title)}", " ".join(_safe(s) for s in outline.sentences)]
    parts += (
        ["*" + " · ".join(_safe(f"{name} {value}") for name, value in outline.facts) + "*"] if outline.facts else []
    )
    parts += ["\n".join(f"> ⚠ {_safe(n)}" for n in outline.notices)] if outline.notices else []
    for section in outline.sections:
        parts += [f"## {_safe(section.title)}", *([_safe(section.intro)] if section.intro else [])]
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block) -> str:
    match block:
        case Prose(lines=lines, code=True):
            fence = "`" * (3 + max((len(run) for run in re.findall("`+", "".join(lines))), default=0))
            return "\n".join([fence, *lines, fence])
        case Prose(lines=lines):
            return _safe(lines[0]) if len(lines) == 1 else "\n".join(f"- {_safe(line)}" for line in lines)
        case Table():
            return f"**{_safe(block.title)}**\n\n{_table(block)}"
        case Figure():
            caveats = "\n".join(f"- ⚠ {_safe(caveat)}" for caveat in block.caveats)
            folded = f"<details><summary>caveats ({len(block.caveats)})</summary>\n\n{caveats}\n\n</details>"
            return f"**{_safe(block.title)}**\n\n{_table(block.table)}" + (f"\n\n{folded}" if caveats else "")
        case Evidence():
            drills = [
                f"- drill {d.number}: {verdict_name(d)}, {_safe(d.why)}; lost {count(d.findings.lost)}, "
                f"RTO {seconds(d.rto_s)}"
                for d in block.drills
            ]
            head = f"<details><summary>{block.verdict.mark} {_safe(block.title)}</summary>"
            return "\n".join([head, "", *drills, "", "</details>"])


def _table(table: Table) -> str:
    heads = "| " + " | ".join(_safe(c.name) for c in table.columns) + " |"
    rule = "|" + "|".join(" ---: " if c.numeric else " --- " for c in table.columns) + "|"
    return "\n".join([heads, rule, *("| " + " | ".join(_safe(c.text) for c in row) + " |" for row in table.rows)])


def _safe(text: str) -> str:
    """The text without anything that Markdown or HTML would interpret; line breaks become spaces."""
    flat = html.escape(re.sub(r"\s+", " ", text), quote=False)
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", flat).replace("@", "&#64;")
