"""The turns of a group through every order of placement, interruption, host death, failure, score and cancellation."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from psrl.schemas.ids import InstanceId
from psrl.schemas.messages.rollout import Placement, SegmentEnd, TurnFailure, TurnResult
from psrl.workflows.machine import reachable
from psrl.workflows.rollout.trajectory import LEGAL, Trajectory, TrajectoryState
from psrl.workflows.rollout.turns import Share, Turns

S = TrajectoryState
INSTANCES = [InstanceId(f"rollout-{number}") for number in range(3)]
FATAL = TurnFailure(type="StaleAttempt", message="refused", retryable=False)
PASSING = TurnFailure(type="EngineUnavailable", message="the engine is dead", retryable=True)
ANSWERS = {
    "complete": {"end": SegmentEnd.STOP, "tokens": 9, "new_tokens": 9},
    "interrupted": {"end": SegmentEnd.INTERRUPTED, "tokens": 5, "new_tokens": 5},
    "running": {"tokens": 3},
    "failed": {"failure": FATAL},
    "lost": {"failure": PASSING},
}


class TurnsMachine(RuleBasedStateMachine):
    @initialize(needed=st.integers(1, 4), spare=st.integers(0, 2))
    def start(self, needed: int, spare: int) -> None:
        self.needed = needed
        self.all = [Trajectory(index) for index in range(needed + spare)]
        self.turns = Turns(self.all, needed)
        self.shares: list[Share] = []
        self.pausing: list[Share] = []
        self.final: dict[int, S] = {}
        self.ended = False

    def some(self, data: st.DataObject, shares: list[Share]) -> Share:
        return shares.pop(data.draw(st.integers(0, len(shares) - 1)))

    @precondition(lambda self: not self.ended and self.turns.routable)
    @rule(data=st.data())
    def route(self, data: st.DataObject) -> None:
        """Some find a place, on any instances; the others ask again."""
        asked = self.turns.route()
        chosen = data.draw(st.lists(st.sampled_from(asked), unique=True))
        self.shares += self.turns.placed(
            [Placement(index=i, instance=data.draw(st.sampled_from(INSTANCES)), version=1) for i in chosen]
        )

    @precondition(lambda self: not self.ended and self.shares)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        share = self.some(data, self.shares)
        kinds = [data.draw(st.sampled_from(sorted(ANSWERS))) for _ in share.indices]
        results = [TurnResult(index=index, **ANSWERS[kind]) for index, kind in zip(share.indices, kinds, strict=True)]
        rest = self.turns.answered(share, results)
        running = tuple(index for index, kind in zip(share.indices, kinds, strict=True) if kind == "running")
        assert (rest.indices if rest else ()) == running, "what still runs is asked for again, and nothing else"
        self.shares += [rest] if rest else []
        self.pausing += [share] if self.turns.pausing(share) else []

    @precondition(lambda self: not self.ended and self.shares)
    @rule(data=st.data())
    def host_dies(self, data: st.DataObject) -> None:
        share = self.some(data, self.shares)
        self.turns.host_lost(share)
        self.pausing.append(share)

    @precondition(lambda self: not self.ended and self.shares)
    @rule(data=st.data())
    def deadline(self, data: st.DataObject) -> None:
        self.turns.refused(self.some(data, self.shares), "not finished before the group's deadline")

    @precondition(lambda self: not self.ended and self.pausing)
    @rule(data=st.data())
    def pause_ends(self, data: st.DataObject) -> None:
        self.turns.paused(self.some(data, self.pausing))

    @precondition(lambda self: not self.ended and any(t.state is S.FINISHED for t in self.all))
    @rule(data=st.data(), scored=st.booleans())
    def score(self, data: st.DataObject, scored: bool) -> None:
        trajectory = data.draw(st.sampled_from([t for t in self.all if t.state is S.FINISHED]))
        if scored:
            trajectory.score(1.0)
        else:
            trajectory.fail("reward failed: no number")

    @precondition(lambda self: not self.ended)
    @rule()
    def no_room(self) -> None:
        self.turns.without_room("no instance had room before the deadline")

    @rule()
    def cancel(self) -> None:
        """The group ends, in whatever state its trajectories are."""
        for trajectory in self.all:
            if trajectory.alive:
                trajectory.to(S.ABORTED)
        self.ended = True

    @invariant()
    def a_turn_is_in_one_share_exactly_while_it_is_generated(self) -> None:
        if not self.ended:
            held = Counter(index for share in self.shares for index in share.indices)
            assert held == Counter(t.index for t in self.all if t.state is S.GENERATING)

    @invariant()
    def nothing_is_forgotten(self) -> None:
        """A turn that could still help is in a share, asks for a place, or pauses before it does."""
        pausing = {index for share in self.pausing for index in share.indices}
        for trajectory in self.all:
            if self.turns.missing > 0 and trajectory.state in (S.ROUTING, S.INTERRUPTED):
                assert trajectory.index in self.turns.routable or trajectory.index in pausing

    @invariant()
    def nobody_works_for_a_group_that_has_enough(self) -> None:
        interrupted = {t.index for t in self.all if t.state is S.INTERRUPTED}
        if self.turns.missing <= 0:
            assert interrupted.isdisjoint(self.turns.routable)

    @invariant()
    def what_is_final_stays(self) -> None:
        for index, state in self.final.items():
            assert self.all[index].state is state
        self.final = {t.index: t.state for t in self.all if not t.alive}

    @invariant()
    def only_what_was_scored_has_a_reward(self) -> None:
        assert all((t.reward is not None) == (t.state is S.SCORED) for t in self.all)


TestTurnsMachine = TurnsMachine.TestCase
TestTurnsMachine.settings = settings(
    max_examples=200, stateful_step_count=30, deadline=None, derandomize=True, database=None
)


def test_every_state_can_be_reached_and_leads_to_an_end() -> None:
    assert reachable(LEGAL, S.ROUTING) == frozenset(S)
    ends = {state for state, following in LEGAL.items() if not following}
    assert ends == {S.SCORED, S.FAILED, S.ABORTED}
    assert all(ends & reachable(LEGAL, state) for state in S)
