"""The turns of a group through every order of placement, interruption, host death, failure, an environment's answer,
time limit, score and cancellation."""

from collections import Counter
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from psrl.schemas.ids import InstanceId
from psrl.schemas.messages.rollout import Placement, SegmentEnd, TurnFailure, TurnResult
from psrl.workflows.machine import reachable
from psrl.workflows.rollout.actor import UNDER_WAY
from psrl.workflows.rollout.trajectory import LEGAL, Trajectory, TrajectoryState
from psrl.workflows.rollout.turns import Share, Turns

S = TrajectoryState
INSTANCES = [InstanceId(f"rollout-{number}") for number in range(3)]
FATAL = TurnFailure(type="StaleAttempt", message="refused", retryable=False)
PASSING = TurnFailure(type="EngineUnavailable", message="the engine died", retryable=True)
DEFECT = TurnFailure(type="ZeroDivisionError", message="of the engine", retryable=True, defect=True)
ANSWERS = {
    "complete": {"end": SegmentEnd.STOP, "tokens": 9, "new_tokens": 9},
    "interrupted": {"end": SegmentEnd.INTERRUPTED, "tokens": 5, "new_tokens": 5},
    "running": {"tokens": 3},
    "failed": {"failure": FATAL},
    "lost": {"failure": PASSING},
    "defect": {"failure": DEFECT},
}
PAUSING = ("lost", "defect")


class TurnsMachine(RuleBasedStateMachine):
    superfluous: ClassVar[int] = 0
    """Moves with turns that wait although enough have finished: a walk that ends before that proves little."""
    further_turns: ClassVar[int] = 0

    @initialize(
        needed=st.integers(1, 3),
        spare=st.integers(0, 3),
        lifetime=st.integers(10, 50),
        patience=st.integers(10, 60),
        answered=st.booleans(),
    )
    def start(self, needed: int, spare: int, lifetime: int, patience: int, answered: bool) -> None:
        """Its deadline, and who may cancel it, come after so many moves."""
        self.moves, self.lifetime, self.patience = 0, lifetime, patience
        self.all = [Trajectory(index) for index in range(needed + spare)]
        self.turns = Turns(self.all, needed, answered)
        self.answered = answered
        self.shares: list[Share] = []
        self.pauses: list[tuple[int, ...]] = []
        self.asked: tuple[int, ...] = ()
        self.final: dict[int, S] = {}
        self.ended = False

    @property
    def over(self) -> bool:
        return self.moves > self.lifetime

    def some(self, data: st.DataObject, shares: list[Share]) -> Share:
        return shares.pop(data.draw(st.integers(0, len(shares) - 1)))

    @precondition(lambda self: not self.ended and not self.asked and self.turns.routable)
    @rule()
    def ask(self) -> None:
        """The coordinator may hold the question, and anything happen meanwhile."""
        self.asked = self.turns.route()

    @precondition(lambda self: not self.ended and self.asked)
    @rule(data=st.data())
    def place(self, data: st.DataObject) -> None:
        """Some find a place, on any instances; the others ask again."""
        found = data.draw(st.integers(1, len(self.asked)))
        chosen = data.draw(st.permutations(self.asked))[:found]
        self.asked, missing = (), self.turns.missing
        shares = self.turns.placed(
            [Placement(index=i, instance=data.draw(st.sampled_from(INSTANCES)), version=1) for i in chosen]
        )
        begun = [index for share in shares for index in share.indices]
        wanted = sorted(i for i in chosen if self.all[i].state is not S.FAILED)
        assert sorted(begun) == (wanted if missing > 0 else []), "each is begun once, none for nobody"
        self.shares += shares

    @precondition(lambda self: not self.ended and self.shares)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        share = self.some(data, self.shares)
        kinds = [data.draw(st.sampled_from([*sorted(ANSWERS), "complete", "complete"])) for _ in share.indices]
        results = [TurnResult(index=index, **ANSWERS[kind]) for index, kind in zip(share.indices, kinds, strict=True)]
        given_up = {index for index in share.indices if self.all[index].state is S.FAILED}
        rest = self.turns.answered(share, results)
        said = [(i, kind) for i, kind in zip(share.indices, kinds, strict=True) if i not in given_up]
        running = tuple(index for index, kind in said if kind == "running")
        assert (rest.indices if rest else ()) == running, "what still runs is asked for again, and nothing else"
        self.shares += [rest] if rest else []
        self.pause(share, tuple(i for i, kind in said if kind in PAUSING and self.all[i].alive))

    @precondition(lambda self: not self.ended and self.shares)
    @rule(data=st.data())
    def host_dies(self, data: st.DataObject) -> None:
        share = self.some(data, self.shares)
        lost = tuple(index for index in share.indices if self.all[index].state is not S.FAILED)
        self.turns.host_lost(share)
        self.pause(share, lost)

    @precondition(lambda self: not self.ended and any(t.state is S.ACTING for t in self.all))
    @rule(data=st.data(), says=st.sampled_from(["more", "more", "done", "failed"]))
    def environment_answers(self, data: st.DataObject, says: str) -> None:
        trajectory = data.draw(st.sampled_from([t for t in self.all if t.state is S.ACTING]))
        before = trajectory.turn, trajectory.tokens
        if says == "more":
            trajectory.next_turn(max_tokens=5)
            assert (trajectory.turn, trajectory.prefer) == (before[0] + 1, trajectory.instance)
            TurnsMachine.further_turns += 1
        elif says == "done":
            trajectory.to(S.FINISHED)
        else:
            trajectory.fail("env_timeout: a step took longer than it may")
        assert trajectory.tokens == before[1]

    @precondition(lambda self: not self.ended and self.answered and self.moves > self.lifetime / 2)
    @rule()
    def trajectories_take_too_long(self) -> None:
        """Whatever they are doing; the engine and the coordinator answer later."""
        for trajectory in self.all:
            if trajectory.state in UNDER_WAY:
                trajectory.fail("trajectory_timeout: not finished in time")

    @precondition(lambda self: not self.ended and self.over and self.shares)
    @rule(data=st.data())
    def deadline(self, data: st.DataObject) -> None:
        self.turns.refused(self.some(data, self.shares), "not finished before the group's deadline")

    def pause(self, share: Share, indices: tuple[int, ...]) -> None:
        assert self.turns.pausing(share) == indices
        self.pauses += [indices] if indices else []

    @precondition(lambda self: not self.ended and self.pauses)
    @rule(data=st.data())
    def pause_ends(self, data: st.DataObject) -> None:
        self.turns.paused(self.pauses.pop(data.draw(st.integers(0, len(self.pauses) - 1))))

    @precondition(lambda self: not self.ended and any(t.state is S.FINISHED for t in self.all))
    @rule(data=st.data(), scored=st.booleans())
    def score(self, data: st.DataObject, scored: bool) -> None:
        trajectory = data.draw(st.sampled_from([t for t in self.all if t.state is S.FINISHED]))
        if scored:
            trajectory.score(1.0)
        else:
            trajectory.fail("reward failed: no number")

    @precondition(lambda self: not self.ended and self.over and not self.asked)
    @rule()
    def no_room(self) -> None:
        self.turns.without_room("no instance had room before the deadline")

    @precondition(lambda self: self.ended or not (self.turns.routable or self.asked or self.shares or self.pauses))
    @rule()
    def time_passes(self) -> None:
        """Which is a move, as everything is."""

    @precondition(lambda self: not self.ended and self.moves > self.patience)
    @rule()
    def cancel(self) -> None:
        """The group ends, in whatever state its trajectories are."""
        for trajectory in self.all:
            if trajectory.alive:
                trajectory.to(S.ABORTED)
        self.ended = True

    @invariant()
    def a_move_is_made(self) -> None:
        self.moves += 1
        waiting = any(t.state in (S.ROUTING, S.INTERRUPTED) for t in self.all)
        TurnsMachine.superfluous += waiting and self.turns.missing <= 0

    @invariant()
    def a_turn_is_in_one_share_exactly_while_it_is_generated(self) -> None:
        if not self.ended:
            held = Counter(index for share in self.shares for index in share.indices)
            given_up = {index for index in held if self.all[index].state is S.FAILED}
            assert held == Counter([*(t.index for t in self.all if t.state is S.GENERATING), *given_up])

    @invariant()
    def nothing_is_forgotten(self) -> None:
        """A turn that could still help is in a share, asks for a place, or pauses before it does."""
        pausing = {index for pause in self.pauses for index in pause}
        for trajectory in self.all:
            if self.turns.missing > 0 and trajectory.state in (S.ROUTING, S.INTERRUPTED):
                assert (trajectory.index in self.turns.routable) != (trajectory.index in pausing)

    @invariant()
    def nobody_works_for_a_group_that_has_enough(self) -> None:
        assert self.turns.missing > 0 or not self.turns.routable

    @invariant()
    def what_is_final_stays(self) -> None:
        for index, state in self.final.items():
            assert self.all[index].state is state
        self.final = {t.index: t.state for t in self.all if not t.alive}

    @invariant()
    def only_what_was_scored_has_a_reward(self) -> None:
        assert all((t.reward is not None) == (t.state is S.SCORED) for t in self.all)


def test_no_order_of_events_loses_a_turn_or_begins_it_twice() -> None:
    limits = settings(max_examples=250, stateful_step_count=50, deadline=None, derandomize=True, database=None)
    run_state_machine_as_test(TurnsMachine, settings=limits)
    assert TurnsMachine.superfluous > 50
    assert TurnsMachine.further_turns > 20


def test_every_state_can_be_reached_and_leads_to_an_end() -> None:
    assert reachable(LEGAL, S.ROUTING) == frozenset(S)
    ends = {state for state, following in LEGAL.items() if not following}
    assert ends == {S.SCORED, S.FAILED, S.ABORTED}
    assert all(ends & reachable(LEGAL, state) for state in S)
