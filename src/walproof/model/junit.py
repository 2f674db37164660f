"""Cases of drills and checks, and their JUnit XML for CI systems. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from xml.etree import ElementTree


@dataclass(frozen=True, slots=True)
class Case:
    """One case: its outcome is failure, error, skipped or system-out, "" where it passed in silence."""

    suite: str
    classname: str
    name: str
    outcome: str = ""
    message: str = ""
    text: str = ""
    seconds: float | None = None


def junit(name: str, cases: Iterable[Case]) -> str:
    """The XML: a suite for each that the cases name, in their order, with how many failed, erred and were skipped."""
    root = ElementTree.Element("testsuites", name=name)
    suites: dict[str, ElementTree.Element] = {}
    for case in cases:
        suite = suites.setdefault(case.suite, ElementTree.Element("testsuite", name=_words(case.suite)))
        element = ElementTree.SubElement(suite, "testcase", classname=_words(case.classname), name=_words(case.name))
        if case.seconds is not None:
            element.set("time", f"{case.seconds:.3f}")
        if case.outcome:
            inner = ElementTree.SubElement(element, case.outcome)
            inner.text = _words(case.text, kept="\n\t") or None
            if case.outcome != "system-out":
                inner.set("message", _words(case.message))
    root.extend(suites.values())
    for part in (root, *suites.values()):
        for word, tag in {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}.items():
            part.set(word, str(len(part.findall(f".//{tag}"))))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _words(text: str, kept: str = "") -> str:
    """Without the characters that XML has no place for, on one line unless its end is kept."""
    return "".join(letter if letter.isprintable() or letter in kept else "?" for letter in text)
