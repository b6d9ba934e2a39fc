"""Which sessions are hung and which continue, against the cases of the original and its own promises."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrl.schemas.config import ContinueScope
from psrl.schemas.ids import InstanceId, SessionId, instance_id
from psrl.workers.coordinator.policies.session.contract import (
    Doing,
    InstanceRoom,
    SessionPlan,
    SessionSnapshot,
    SessionView,
)
from psrl.workers.coordinator.policies.session.thunder_agent import ThunderAgent

CASES = json.loads((Path(__file__).parents[4] / "cases" / "session_capacity.json").read_text())["cases"]


def snapshot_of(case: dict[str, Any]) -> SessionSnapshot:
    return SessionSnapshot(
        {InstanceId(name): InstanceRoom(**room) for name, room in case["instances"].items()},
        [
            SessionView(SessionId(name), Doing(doing), tokens, InstanceId(instance), hung=name in case["hung"])
            for name, doing, tokens, instance in case["sessions"]
        ],
    )


@pytest.mark.parametrize("case", CASES)
def test_the_cases_of_the_original_come_out_the_same(case: dict[str, Any]) -> None:
    snapshot = snapshot_of(case)
    plan = ThunderAgent(scope=ContinueScope(case.get("scope", "bucketed")))(snapshot)
    where = {one.session: one.instance for one in snapshot.sessions}
    wanted = case["continue"]
    if isinstance(wanted, list):
        wanted = {name: where[name] for name in wanted}
    assert (list(plan.hang), plan.go_on) == (case["hang"], wanted)


def test_a_session_on_an_instance_that_is_gone_is_left_alone() -> None:
    gone = SessionView(SessionId("a"), Doing.ENV, 10, InstanceId("gone"), hung=True)
    assert ThunderAgent()(SessionSnapshot({}, [gone])) == SessionPlan()


@pytest.mark.parametrize(("scope", "too_large"), [(ContinueScope.BUCKETED, ("a",)), (ContinueScope.GLOBAL, ())])
def test_a_session_that_no_instance_could_hold_is_named(scope: ContinueScope, too_large: tuple[str, ...]) -> None:
    rooms = {InstanceId("i0"): InstanceRoom(400, 0), InstanceId("i1"): InstanceRoom(1000, 0)}
    hung = SessionView(SessionId("a"), Doing.ENV, 500, InstanceId("i0"), hung=True)
    assert ThunderAgent(scope=scope)(SessionSnapshot(rooms, [hung])).too_large == too_large


INSTANCES = [instance_id(number) for number in range(3)]
ROOMS = st.builds(InstanceRoom, st.integers(1, 2000), st.integers(0, 3000))
SESSIONS = st.lists(
    st.tuples(st.sampled_from(Doing), st.integers(0, 1000), st.sampled_from(INSTANCES), st.booleans()), max_size=12
).map(lambda rows: [SessionView(SessionId(f"s{i:02d}"), *row) for i, row in enumerate(rows)])
POLICIES = st.builds(ThunderAgent, st.floats(0, 2), st.integers(0, 100), st.sampled_from(ContinueScope))


@given(POLICIES, st.fixed_dictionaries(dict.fromkeys(INSTANCES, ROOMS)), SESSIONS)
def test_what_continues_fits_and_what_runs_is_hung_only_where_it_overflows(
    policy: ThunderAgent, rooms: dict[InstanceId, InstanceRoom], sessions: list[SessionView]
) -> None:
    plan = policy(SessionSnapshot(rooms, sessions))
    by_name = {one.session: one for one in sessions}
    assert not any(by_name[name].hung for name in plan.hang)
    assert all(by_name[name].hung for name in [*plan.go_on, *plan.too_large])
    assert not set(plan.go_on) & set(plan.too_large)
    for name, room in rooms.items():
        running = [one for one in sessions if one.instance == name and not one.hung]
        shared = max(0, sum(one.tokens for one in running if one.doing is Doing.GENERATE) - room.used)
        staying = [one for one in running if one.session not in plan.hang]
        weight = {Doing.GENERATE: 1.0, Doing.ENV: policy.env_token_weight}
        taken = int(sum(weight[one.doing] * one.tokens for one in staying)) - shared
        taken += policy.buffer_per_session * len(staying)
        coming = [by_name[one].tokens + policy.buffer_per_session for one, at in plan.go_on.items() if at == name]
        assert not coming or taken + sum(coming) <= room.capacity
        assert taken <= room.capacity or not staying


@given(POLICIES, SESSIONS)
def test_a_session_continues_sooner_or_later_on_an_empty_fleet_or_is_named_too_large(
    policy: ThunderAgent, sessions: list[SessionView]
) -> None:
    """Nobody waits for ever: hung sessions alone, each round's taken away."""
    rooms = dict.fromkeys(INSTANCES, InstanceRoom(800, 0))
    hung = [SessionView(one.session, one.doing, one.tokens, one.instance, hung=True) for one in sessions]
    while hung:
        plan = policy(SessionSnapshot(rooms, hung))
        settled = {*plan.go_on, *plan.too_large}
        assert settled
        hung = [one for one in hung if one.session not in settled]
