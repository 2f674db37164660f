"""docs/kubernetes.md says of each right that `--print-rbac` can print what it amounts to."""

import re
from pathlib import Path

from tests.fixtures.tiers import each
from walproof.targets.cnpg.created_objects import EXPERIMENTS
from walproof.targets.cnpg.rbac import FURTHER, USES, CnpgRights, Names, rules_for
from walproof.targets.cnpg.target_file import CnpgFile

PAGE = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text("utf-8")
VERBS = {"get", "list", "create", "patch", "delete", "update", "watch", "deletecollection"}


def rows() -> dict[tuple[str, str], set[str]]:
    """The uses of each (verb, resource) that a row names: its resources follow its verbs, up to the next verb."""
    _, _, table = PAGE.partition("| right | for | amounts to |\n|---|---|---|\n")
    found: dict[tuple[str, str], set[str]] = {}
    for line in table.partition("\n\n")[0].splitlines():
        _, right, uses, means, _ = (cell.strip() for cell in line.split("|"))
        assert means, line
        verbs: list[str] = []
        after = False
        for word in re.findall(r"`([a-z/]+)`", right):
            if word in VERBS:
                verbs = [*([] if after else verbs), word]
            else:
                for verb in verbs:
                    found.setdefault((verb, word), set()).update(re.findall(r"[a-z-]+", uses))
            after = word not in VERBS
    return found


@each([*USES, *FURTHER])
def test_each_right_that_is_printed_stands_in_the_table_with_its_use(use: str) -> None:
    table = rows()
    for rule in rules_for([use], Names("pg", ("pg-1",), "pg-app")):
        for verb in rule.verbs:
            uses = table.get((verb, rule.kind.plural), set())
            assert uses & {use, "all"}, f"docs/kubernetes.md#rights lacks {verb} {rule.kind.plural} for {use}"


def test_no_row_names_a_right_that_is_never_printed() -> None:
    printed = {
        (verb, rule.kind.plural)
        for rule in rules_for([*USES, *FURTHER], Names("pg", ("pg-1",), "pg-app"))
        for verb in rule.verbs
    }
    assert rows().keys() == printed


def test_a_role_for_experiments_says_where_to_read_what_it_amounts_to() -> None:
    text = CnpgRights(CnpgFile(kind="cnpg", cluster="db/pg"), None).role(["chaos-mesh"])
    assert "docs/kubernetes.md, Rights" in text.partition("apiVersion")[0]
    security = (Path(__file__).parents[2] / "SECURITY.md").read_text("utf-8")
    assert EXPERIMENTS and "root on the nodes" in security
