"""What the lab asks of Patroni over REST: configuration, switchover, restart, clone anew. No SQL beyond pg_settings."""

import base64
import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg

from walproof.errors import TargetError, UsageError
from walproof.lab import assembly, home
from walproof.lab.blueprint import REST_PORT, Blueprint
from walproof.lab.programs import patroni
from walproof.machine import software
from walproof.machine.clock import RealClock
from walproof.model.guarantee import SyncMode
from walproof.model.ports import Clock
from walproof.model.waiting import Wait, wait_for


def ask(
    blueprint: Blueprint, member: str, path: str, *, method: str = "GET", body: Any = None, timeout_s: float = 1.0
) -> tuple[int, Any]:
    """Status and answer (JSON where it is) of a member's Patroni; OSError when it does not answer in time."""
    link = http.client.HTTPConnection(blueprint.address(member), REST_PORT, timeout=timeout_s)
    headers = {}
    if method != "GET":
        word = base64.b64encode(f"walproof:{home.read_secrets(blueprint)['rest']}".encode()).decode()
        headers = {"Authorization": f"Basic {word}", "Content-Type": "application/json"}
    try:
        link.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
        answer = link.getresponse()
        text = answer.read().decode(errors="replace")
    except http.client.HTTPException as wrong:
        raise ConnectionError(str(wrong)) from wrong
    finally:
        link.close()
    try:
        return answer.status, json.loads(text)
    except ValueError:
        return answer.status, text


def tell(
    blueprint: Blueprint, member: str, path: str, *, method: str = "POST", body: Any = None, timeout_s: float = 60.0
) -> Any:
    """Like `ask`, for orders: TargetError with Patroni's own words when it refuses or does not answer."""
    try:
        status, said = ask(blueprint, member, path, method=method, body=body, timeout_s=timeout_s)
    except OSError as wrong:
        raise TargetError(f"Patroni of {member} does not answer: {wrong}", "walproof lab status") from None
    if status >= 300:
        raise TargetError(f"Patroni of {member} refuses {path}: {said}", "walproof lab status")
    return said


def any_answering(blueprint: Blueprint) -> str:
    """A member whose Patroni answers, a leader before others; TargetError when none does."""
    found = None
    for member in blueprint.members:
        try:
            status, _ = ask(blueprint, member, "/primary")
        except OSError:
            continue
        if status == 200:
            return member
        found = found or member
    if found is None:
        raise TargetError("no member's Patroni answers", "walproof lab status")
    return found


def config(blueprint: Blueprint) -> dict[str, Any]:
    """The configuration in the DCS."""
    said = tell(blueprint, any_answering(blueprint), "/config", method="GET", timeout_s=5)
    if not isinstance(said, dict):
        raise TargetError(f"Patroni states no configuration: {said}")
    return said


def patch_config(blueprint: Blueprint, change: dict[str, Any]) -> None:
    """Change the configuration in the DCS; None removes a key."""
    tell(blueprint, any_answering(blueprint), "/config", method="PATCH", body=change, timeout_s=10)


def pause(blueprint: Blueprint, paused: bool) -> None:
    """Maintenance mode: Patroni looks on and does nothing."""
    patch_config(blueprint, {"pause": True if paused else None})


def restart(blueprint: Blueprint, member: str) -> None:
    """Restart PostgreSQL of that member; returns when Patroni says that it is done."""
    tell(blueprint, member, "/restart", body={}, timeout_s=90)


def reinitialize(blueprint: Blueprint, member: str) -> None:
    """Throw the member's data away and clone it anew."""
    tell(blueprint, member, "/reinitialize", body={"force": True}, timeout_s=30)


def switchover(blueprint: Blueprint, leader: str, to: str | None) -> None:
    """Hand the leadership over as planned; returns when Patroni says that it is done."""
    body = {"leader": leader, **({"candidate": to} if to else {})}
    tell(blueprint, leader, "/switchover", body=body, timeout_s=90)


def set_sync(blueprint: Blueprint, mode: SyncMode, quorum: int) -> None:
    """Set synchronous mode and quorum, and wait until the names are in effect."""
    from walproof.lab.health import wait_until_healthy

    standbys = len(blueprint.members) - 1
    if mode is not SyncMode.OFF and not 1 <= quorum <= standbys:
        raise UsageError(f"a quorum of {quorum} needs as many standbys; there are {standbys}")
    wanted = patroni.sync_settings(mode.value, quorum)
    patch_config(blueprint, wanted)
    wait_until_healthy(blueprint, RealClock(), wanted=wanted)


def set_parameters(blueprint: Blueprint, parameters: dict[str, str | None]) -> None:
    """Set parameters on every member (None: back to the lab's own) and wait until pg_settings says so everywhere."""
    from walproof.lab.health import wait_until_healthy

    given = {name: value for name, value in parameters.items() if value is not None}
    software.check_parameters(blueprint.postgres_bin, given)
    own = assembly.lab_parameters(blueprint)
    wanted = {name: own.get(name) if value is None else value for name, value in parameters.items()}
    patch_config(blueprint, {"postgresql": {"parameters": wanted}})
    expected = {n: software.canonical(blueprint.postgres_bin, n, v) for n, v in wanted.items()}
    clock: Clock = RealClock()
    restarted: list[bool] = []

    def in_effect() -> bool:
        states = {m: _state(blueprint, m, list(wanted)) for m in blueprint.members}
        if any(state is None for state in states.values()):
            return False
        known = {m: state for m, state in states.items() if state is not None}
        pending = {m: state for m, state in known.items() if any(p for _, p in state.values())}
        if pending:
            restarted.append(True)
            _restart_in_turn(blueprint, pending, expected)
            return False
        return all(_same(state.get(n), expected[n]) for state in known.values() for n in wanted)

    wait_for(Wait.SETTING_IN_EFFECT, in_effect, clock, pace_s=0.2, times=4)
    if restarted:
        wait_until_healthy(blueprint, clock)


def _same(found: tuple[str, bool] | None, expected: str | None) -> bool:
    if found is None:
        return False
    return expected is None or found[0] == expected


def _restart_in_turn(
    blueprint: Blueprint, pending: dict[str, dict[str, tuple[str, bool]]], expected: dict[str, str | None]
) -> None:
    """Restart those whose turn it is, at once.

    A standby may never have less than its primary (max_connections and the like, manual 26.4.3): what grows is
    restarted on the standbys first, what shrinks on the leader.
    """
    leader = any_answering(blueprint)
    shrinks = any(_number(found) > _number(expected[n]) for n, (found, _) in pending.get(leader, {}).items())
    standbys = [m for m in pending if m != leader]
    turn = [leader] if leader in pending and (shrinks or not standbys) else standbys
    with ThreadPoolExecutor(max_workers=len(turn)) as pool:
        list(pool.map(lambda m: _try_restart(blueprint, m), turn))


def _try_restart(blueprint: Blueprint, member: str) -> None:
    # A member that is busy is asked again by the wait around it.
    with suppress(TargetError):
        restart(blueprint, member)


def _number(text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        return 0.0


def _state(blueprint: Blueprint, member: str, names: list[str]) -> dict[str, tuple[str, bool]] | None:
    question = "SELECT name, setting, pending_restart FROM pg_settings WHERE name = ANY(%s)"
    try:
        with psycopg.connect(blueprint.member_endpoint(member).conninfo(), autocommit=True) as link:
            rows = link.execute(question, ([n.lower() for n in names],)).fetchall()
    except psycopg.Error:
        return None
    found = {str(name).lower(): (str(setting), bool(pending)) for name, setting, pending in rows}
    return {n: found[n.lower()] for n in names if n.lower() in found}
