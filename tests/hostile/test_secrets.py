"""Passwords on the command line, in every form libpq and people know: none reaches a record, journal, page or error."""

import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.fixtures.command_line import Run, ended
from tests.fixtures.plain_pair import PlainPair
from tests.fixtures.records import recorded
from tests.fixtures.tiers import NIGHTLY, each, every
from walproof.errors import UsageError
from walproof.machine.redaction import UNREADABLE, command_line, in_text, without_secrets
from walproof.model.event import Started
from walproof.records.journal import Journal
from walproof.records.reader import read
from walproof.records.writer import Writer
from walproof.targets.choose import choose
from walproof.targets.external.target_file import read_tree, validated
from walproof.targets.patroni.target_file import PatroniFile, read_address

PW = "Gehe1m"
ADDRESSES = {
    "url": f"postgresql://u:{PW}@127.0.0.1:1/db",
    "url-percent": "postgresql://u:%47ehe1m@127.0.0.1:1/db",
    "url-query": f"postgresql://127.0.0.1:1/db?user=u&password={PW}",
    "url-both": f"postgres://u:{PW}@127.0.0.1:1,127.0.0.1:2/db?password={PW}",
    "url-sslpassword": f"postgresql://u@127.0.0.1:1/db?sslpassword={PW}",
    "url-scram-key": f"postgresql://u@127.0.0.1:1/db?scram_client_key={PW}",
    "url-slash-in-password": f"postgresql://u:{PW}/x@127.0.0.1:1/db",
    "url-at-in-password": f"postgresql://u:x@{PW}@127.0.0.1:1/db",
    "url-space": f"postgresql:// u:{PW}@127.0.0.1:1/db",
    "keyword": f"host=127.0.0.1 port=1 password={PW}",
    "keyword-spaces": f"host=127.0.0.1 port=1 password = {PW} user=u",
    "keyword-quoted": f"host=127.0.0.1 port=1 password='{PW} x' user=u",
    "keyword-escaped": f"host=127.0.0.1 port=1 password='x\\'{PW}' user=u",
    "keyword-sslpassword": f"host=127.0.0.1 port=1 sslpassword='{PW}'",
    "keyword-unquoted-space": f"host=127.0.0.1 password=x {PW}",
    "keyword-only": f"password={PW}",
    "keyword-misspelt": f"host=127.0.0.1 port=1 pasword={PW}",
    "keyword-twice": f"host=127.0.0.1 port=1 password=first password={PW}",
    "keyword-line-breaks": f"host=127.0.0.1\nport=1\npassword\n=\n{PW}",
    "keyword-longer-than-a-file-name": f"host=127.0.0.1 port=1 application_name={'x' * 300} password={PW}",
    "keyword-like-a-file-name": f"host=127.0.0.1 port=1 password={PW}.toml",
    "url-in-dbname": f"host=127.0.0.1 port=1 dbname='postgresql://u:{PW}@127.0.0.1/db'",
    "url-parameter-in-disguise": f"postgresql://127.0.0.1:1/db?%70assword={PW}",
    "url-unknown-parameter": f"postgresql://127.0.0.1:1/db?pasword={PW}",
    "url-in-capitals": f"POSTGRESQL://u:{PW}@127.0.0.1:1/db",
    "url-port-that-is-none": f"postgresql://u:{PW}@127.0.0.1:port/db",
    "url-question-mark-in-password": f"postgresql://u:?{PW}@127.0.0.1:1/db",
    "rest": f"http://u:{PW}@127.0.0.1:1/",
    "rest-slash": f"http://u:x/{PW}@127.0.0.1:1",
    "rest-query": f"https://127.0.0.1:1/?password={PW}",
    "no-scheme": f"u:{PW}@127.0.0.1",
    "unknown-scheme": f"mysql://u:{PW}@127.0.0.1/db",
}
WORST = ("url-percent", "url-at-in-password", "keyword-escaped", "no-scheme")
"""Which forms each verb is given with every push; two verbs are given all of them."""
VERBS = {
    "price": "price --target {} --budget 1s --allow load",
    "price-equals": "price --target={} --budget 1s --dry-run",
    "prove": "prove --target {} --fault none",
    "doctor": "doctor --target {}",
    "watch": "watch --target {} --json",
    "exporter": "watch --target {} --exporter --duration 1s --port 0",
    "apply": "apply --undo --target {} --allow config",
    "study": "study run patroni-tradeoff --quick --target {} --allow load,kill",
    "study-no-consent": "study run patroni-tradeoff --quick --target {}",
    "wrong-option": "price --tagret {}",
    "extra-word": "doctor {} {}",
    "record": "report {}",
    "advice": "apply {} --dry-run",
}


@each(ADDRESSES.values())
def test_no_form_of_a_password_is_left_in_a_name(address: str) -> None:
    shown = without_secrets(address)
    assert PW not in shown
    assert "%47ehe1m" not in shown
    assert without_secrets(shown) == shown


@each([
    "sim", "lab:x", "cluster.toml", "secrets/token.toml", "clusters/me@work.toml", "host=a dbname=passwords",
    "postgresql://me@a,b/app?sslmode=require", "host=a user=b",
])  # fmt: skip
def test_what_holds_no_secret_stays_as_typed(address: str) -> None:
    assert without_secrets(address) == address


def test_hosts_and_options_stay_in_the_name() -> None:
    assert without_secrets(f"postgresql://u:{PW}@a:5,b:6/app?sslmode=require") == (
        "postgresql://u@a:5,b:6/app?sslmode=require"
    )
    assert without_secrets(f"host=a,b user=u password='{PW}' dbname=x") == "host=a,b user=u dbname=x"


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_tells_a_password_when_the_cluster_does_not_answer(
    verb: str, walproof: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGPORT", "1")

    def keeps(form: str) -> None:
        words = [word.replace("{}", ADDRESSES[form]) for word in VERBS[verb].split()]
        monkeypatch.setattr(sys, "argv", ["walproof", *words])
        code, out, err = walproof(*words)
        assert code in {2, 3}
        assert PW not in out + err
        assert "%47ehe1m" not in out + err

    every(ADDRESSES if NIGHTLY or verb in {"price", "doctor"} else WORST, keeps)
    assert leaks(tmp_path) == []


def leaks(folder: Path, secret: str = PW) -> list[str]:
    """Files below the folder that hold the secret in their name or content."""
    found = [path for path in folder.rglob("*") if secret in path.name]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(p) for p in found + [path for path in files if secret.encode() in path.read_bytes()]]


def test_the_leak_finder_finds_a_leak(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_text(f"x {PW} y")
    assert leaks(tmp_path) == [str(tmp_path / "a" / "b")]


@each([
    f"primary_conninfo = 'user=r password={PW}'",
    f"primary_conninfo = 'user=r password=''{PW}'' host=a'",
    f'  password: "{PW}"',
    f"ALTER ROLE x PASSWORD '{PW}'",
    f"GET http://u:{PW}@db1:8008/config",
])  # fmt: skip
def test_passwords_in_logs_do_not_enter_a_record(text: str, tmp_path: Path) -> None:
    recorded(tmp_path / "r", "prove", n1_log=f"2026 LOG: {text}\n")
    assert leaks(tmp_path) == []
    assert "LOG" in (tmp_path / "r" / "files" / "n1.log").read_text()


def test_a_rest_address_with_a_password_in_a_target_file_is_refused_and_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f'kind = "patroni"\nrest = ["http://u:{PW}@127.0.0.1:1"]\n')
    with pytest.raises(UsageError, match="password_file") as refused:
        choose(str(path))
    assert PW not in str(refused.value)


def test_a_wrong_key_next_to_a_password_in_a_target_file_does_not_show_it(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        f'kind = "patroni"\nrest = ["http://a:1"]\n[restapi]\nuser = "u"\npassword = "{PW}"\npasswort = 1\n'
    )
    with pytest.raises(UsageError) as refused:
        validated(PatroniFile, read_tree(path), str(path))
    assert PW not in str(refused.value)


def test_the_password_of_a_rest_address_is_used_though_not_shown() -> None:
    name, file = read_address("http://u:p%40ss@db1:8008/")
    assert (name, file.restapi.user, file.restapi.password.get_secret_value()) == ("http://db1:8008", "u", "p@ss")
    assert "p@ss" not in repr(file)


def test_a_record_and_a_journal_are_their_owners_alone_even_under_umask_0(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Writer(tmp_path / "r", "price") as record:
            record(Started(0.0, "price", {}, "walproof", 1, "1"))
            record.keep("x.log", "x")
            Journal(tmp_path / "r" / "journal.jsonl").note(0.0, "t", "s", "n", before=None, after="1")
    finally:
        os.umask(before)
    modes = {p.relative_to(tmp_path): stat.S_IMODE(p.stat().st_mode) for p in tmp_path.rglob("*")}
    assert modes
    assert {str(p): oct(m) for p, m in modes.items() if m & 0o077} == {}


def test_a_resumed_run_on_an_external_cluster_asks_for_the_target_again(walproof: Run, tmp_path: Path) -> None:
    question = {"target": without_secrets(ADDRESSES["url"]), "levels": "on"}
    command = command_line(["price", "--target", ADDRESSES["url"]])
    recorded(tmp_path / "r", "price", [Started(0.0, "price", question, command, 1, "1")])
    assert leaks(tmp_path) == []
    code, _, err = walproof("price", "--resume", "r")
    assert code == 2
    assert "give its --target again" in err
    code, _, err = walproof("price", "--resume", "r", "--target", f"postgresql://u:{PW}@127.0.0.2:1/db")
    assert code == 2
    assert "not of postgresql://u@127.0.0.2:1/db" in err
    assert PW not in err
    code, _, err = walproof("price", "--resume", "r", "--target", ADDRESSES["url"], "--allow", "load")
    assert code == 3  # it went on, and nobody answers there


def test_an_unreadable_address_says_so_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ended(capsys, ["doctor", "--target", ADDRESSES["url-slash-in-password"]])
    assert code == 2
    assert "%2F" in err
    assert UNREADABLE not in err


def test_text_without_a_secret_is_kept() -> None:
    text = "password authentication failed for user u"
    assert in_text(text) == text


@pytest.mark.lab
def test_runs_on_a_real_cluster_leave_the_password_nowhere(debian: PlainPair, tmp_path: Path) -> None:
    """Price, prove, doctor, report and revert with the password in the DSN: files, terminal and process list."""
    secret = debian.passfile.read_text().strip().splitlines()[0].rsplit(":", 1)[1]
    dsn = f"postgresql://postgres:{secret}@127.0.0.1:{debian.ports['n1']},127.0.0.1:{debian.ports['n2']}/postgres"
    seen: set[str] = set()
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.1):
            for process in psutil.process_iter():
                try:
                    command = process.cmdline()
                except psutil.Error:
                    continue
                # Our own command shows it until Python runs and can take it away: a password typed is typed.
                young = "-P" in command and process.create_time() > time.time() - 5
                if any(secret in word for word in command) and not young:
                    seen.add(" ".join(command))

    watcher = threading.Thread(target=sample)
    watcher.start()
    printed = ""
    try:
        for words in (
            f"price --target {dsn} --levels off,local --clients 1 --budget 3s --sample 1s --scale 1 --allow load "
            "--record p",
            f"prove --target {dsn} --fault none --levels local --writers 2 --allow load --record q",
            f"doctor --target {dsn}",
            "report p --html p.html",
            "report q --html q.html",
            f"revert p --target {dsn}",
        ):
            result = subprocess.run(
                [sys.executable, "-P", "-m", "walproof", *words.split()],
                cwd=tmp_path,
                check=False,
                env={**os.environ, "WALPROOF_STATE": str(tmp_path / "state")},
                capture_output=True,
                text=True,
                timeout=300,
            )
            printed += result.stdout + result.stderr
            shown = f"{words}: {result.stderr}".replace(secret, "***")
            assert result.returncode in {0, 1, 4}, shown
    finally:
        done.set()
        watcher.join()
    assert secret not in printed
    assert {s.replace(secret, "***") for s in seen} == set()
    assert leaks(tmp_path, secret) == []
    assert read(tmp_path / "p").started is not None
