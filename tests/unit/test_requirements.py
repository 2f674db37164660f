"""What `lab doctor` makes of recorded machines: whether there can be a lab, what is lost, what to do first."""

from pathlib import Path

from tests.fixtures.recorded_machines import from_text, machine
from tests.fixtures.tiers import each
from walproof.lab import requirements
from walproof.lab.requirements import Output, State, as_text

MACHINES = Path(__file__).parents[1] / "fixtures/machines"


def rows_of(name: str) -> tuple[requirements.Row, ...]:
    return requirements.judged(machine(name))


def limited(name: str) -> set[str]:
    return {row.subject for row in rows_of(name) if row.state is State.LIMITED}


@each([
    ("this-machine-root", set()),
    ("this-machine-user", {"/dev/net/tun", "control groups", "loop devices"}),
    ("debian-12-user", {"control groups", "loop devices"}),
    ("arm64-user", {"control groups", "loop devices"}),
    ("wsl2-user", {"control groups", "loop devices"}),
])  # fmt: skip
def test_a_machine_that_can_have_a_lab_says_what_it_lacks(name: str, lost: set[str]) -> None:
    rows = rows_of(name)
    assert requirements.blocking(rows) is None
    assert limited(name) == lost
    assert requirements.conclusion(rows).startswith("A lab can be created here")
    assert all(row.costs and row.todo for row in rows if row.state is not State.WORKS)


@each([
    ("debian-13-root", "etcd is missing", "sudo apt-get install --no-install-recommends etcd-server"),
    ("fedora-user", "etcd is missing", "sudo dnf install etcd"),
    ("ubuntu-24.04-user", "kernel.apparmor_restrict_unprivileged_userns is 1",
     "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
    ("docker-without-capabilities", "root has no CAP_NET_ADMIN and no CAP_SYS_ADMIN", "docker run --cap-add"),
    ("alpine-root", "built for glibc", "Debian, Ubuntu, Fedora"),
    ("macos", "a lab needs Linux, and this is macOS", "--target postgresql://"),
])  # fmt: skip
def test_a_machine_that_can_have_none_names_what_is_missing_first_and_what_to_do(
    name: str, missing: str, todo: str
) -> None:
    rows = rows_of(name)
    row = requirements.blocking(rows)
    assert row is not None
    assert missing in row.found
    assert todo in row.todo
    assert requirements.conclusion(rows).startswith(f"No lab can be created here: {row.found}")


def test_the_system_is_named_as_it_names_itself() -> None:
    assert rows_of("wsl2-user")[0].found.endswith("in WSL2")
    assert "aarch64" in rows_of("arm64-user")[0].found
    assert "docker container" in rows_of("docker-without-capabilities")[0].found


def test_fedora_has_no_package_of_the_exporter_and_says_so() -> None:
    row = next(r for r in rows_of("fedora-user") if r.subject == "prometheus-postgres-exporter")
    assert row.state is State.LIMITED
    assert "no package" in row.todo


def test_a_recording_survives_being_written_and_read() -> None:
    kept = {"a": Output("one\n\ntwo"), "b": Output("", 127), "c": Output("no", 1), "d": Output("")}
    assert from_text(as_text(kept)) == kept
    assert from_text("") == {}


def test_every_recording_says_where_it_is_from() -> None:
    for path in MACHINES.glob("*.txt"):
        first = path.read_text("utf-8").splitlines()[0]
        assert "ecorded" in first or "ritten after documentation" in first, path
