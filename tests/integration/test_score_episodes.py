"""Scoring of episodes of several turns and branches: one reward for all branches, stored in one statement."""

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.exceptions import ApplicationError

from psrl.activities.generation.turns import TurnStore
from psrl.activities.rewards.score import Rewards
from psrl.activities.store.branches import Fork
from psrl.activities.store.runs import AdmittedRuns
from psrl.schemas.config import RunConfig
from psrl.schemas.errors import StaleAttempt
from psrl.schemas.ids import GroupId
from psrl.schemas.messages.episodes import EpisodeOutcome, TerminateReason
from psrl.schemas.messages.rewards import RewardSample, SampleTurn, Score, ScoreOutcome, ScoreRequest
from psrl.schemas.messages.rollout import Sampling, TrajectoryRef, TurnRequest
from psrl.schemas.tables import Trajectory
from tests.support.episodes import Branch, add_episode, said
from tests.support.runs import RUN, admit, config_values, draw, ids_of, set_trajectory, sums, write_jsonl

pytestmark = pytest.mark.integration

GROUP = GroupId("000000")
EPISODES = 2
seen: list[RewardSample] = []


def keeps(sample: RewardSample) -> dict[str, float]:
    seen.append(sample)
    return {"score": float(len(sample.turns)), "acc": 1.0}


def told_to_verl(solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
    assert extra_info == {"number": 0, "num_turns": 2, "outcome_reward": 0.5, "outcome_info": {"steps": 3}}
    return float(len(solution_str))


def told_to_trl(prompts: list[Any], completions: list[Any]) -> list[float]:
    assert completions == [
        [
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "more"},
            {"role": "assistant", "content": "bc"},
        ]
    ]
    return [7.0]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    seen.clear()


class PlayedRun:
    """A store with one group of two episodes."""

    def __init__(self, engine: AsyncEngine, model: Path, folder: Path) -> None:
        self.engine, self._model, self._folder = engine, model, folder

    async def open(self, function: str = "keeps") -> None:
        train = write_jsonl(self._folder / "train.jsonl", sums(2))
        section = {"function": f"{__name__}:{function}", "max_attempts": 1}
        await admit(self.engine, config_values(self._model, train, reward=section))
        await draw(self.engine, [0], trajectories=EPISODES)

    async def score(self, *indices: int) -> tuple[Score, ...]:
        request = ScoreRequest(run_id=RUN, group_id=GROUP, indices=indices, episodes=EPISODES)
        with closing(Rewards(self.engine)) as rewards:
            return (await rewards.score(request)).scores

    async def stored(self) -> dict[int, tuple[str, float | None, str]]:
        columns = (Trajectory.index, Trajectory.status, Trajectory.reward, Trajectory.reward_error)
        async with self.engine.connect() as connection:
            rows = await connection.execute(select(*columns).order_by(Trajectory.index))
            return {row.index: (row.status, row.reward, row.reward_error) for row in rows}


@pytest.fixture
def run(store: AsyncEngine, tiny_model_dir: Path, tmp_path: Path) -> PlayedRun:
    return PlayedRun(store, tiny_model_dir, tmp_path)


async def test_all_branches_of_an_episode_get_its_reward_and_those_of_others_none(run: PlayedRun) -> None:
    await run.open()
    await add_episode(
        run.engine,
        GROUP,
        Branch(1, [said("q", "a"), said("r", "bb")]),
        Branch(3, [said("s", "ccc")], Fork(1, 0)),
        Branch(5, [said("t", "d")]),
    )
    await add_episode(run.engine, GROUP, Branch(0, [said("", "x")]), Branch(2, [said("u", "y")], Fork(0, 0)))
    assert [(score.index, score.reward) for score in await run.score(1)] == [(1, 1.0)]
    assert await run.stored() == {
        0: ("finished", None, ""),
        1: ("scored", 1.0, ""),
        2: ("finished", None, ""),
        3: ("scored", 1.0, ""),
        5: ("scored", 1.0, ""),
    }
    assert [(score.index, score.reward) for score in await run.score(0, 1)] == [(0, 2.0), (1, 1.0)]
    assert len(seen) == 2, "what is stored is not computed again"


async def test_a_reward_sees_the_last_branch_with_what_it_shares_with_the_one_it_left(run: PlayedRun) -> None:
    await run.open()
    outcome = EpisodeOutcome(ended=TerminateReason.FINISHED, reward=0.5, info={"steps": 3})
    await add_episode(
        run.engine,
        GROUP,
        Branch(0, [said("", "one"), said("two?", "2"), said("lost?", "lost")]),
        Branch(2, [said("three?", "333"), said("gone?", "gone")], Fork(0, 1)),
        Branch(4, [said("four?", "4"), said("cut?", "cut", end=None)], Fork(2, 0)),
        Branch(6, [said("never?", "nev", end=None)], Fork(0, 0)),
        outcome=outcome,
    )
    await run.score(0)
    (sample,) = seen
    assert sample.turns == [
        SampleTurn(environment="", policy="one"),
        SampleTurn(environment="two?", policy="2"),
        SampleTurn(environment="three?", policy="333"),
        SampleTurn(environment="four?", policy="4"),
    ]
    assert sample.response_text == "onetwo?2three?333four?4"
    assert sample.response_ids == ids_of(sample.response_text)
    assert (sample.outcome_reward, sample.outcome_info) == (0.5, {"steps": 3})


@pytest.mark.parametrize(("function", "reward"), [("told_to_verl", 7.0), ("told_to_trl", 7.0)])
async def test_rewards_of_other_libraries_are_told_of_the_turns(run: PlayedRun, function: str, reward: float) -> None:
    await run.open(function)
    outcome = EpisodeOutcome(ended=TerminateReason.FINISHED, reward=0.5, info={"steps": 3})
    branch = Branch(0, [said("", "a"), said("more", "bc")])
    await add_episode(run.engine, GROUP, branch, outcome=outcome)
    assert [score.error or score.reward for score in await run.score(0)] == [reward]


async def test_a_branch_that_was_cut_is_scored_and_takes_nothing_more(run: PlayedRun) -> None:
    """Its last turn is none: what may still arrive of it is refused."""
    await run.open()
    await add_episode(run.engine, GROUP, Branch(0, [said("", "one"), said("two?", "2", end=None)]))
    assert [score.reward for score in await run.score(0)] == [1.0]
    late = TurnRequest(
        trajectory=TrajectoryRef(run_id=RUN, group_id=GROUP, index=0),
        turn=1,
        version_tag=0,
        sampling=Sampling(temperature=1, max_tokens=8),
    )
    with pytest.raises(StaleAttempt):
        await TurnStore(run.engine).claim(late, 7_000_001)


async def test_an_episode_of_which_the_first_branch_was_never_used_is_scored(run: PlayedRun) -> None:
    await run.open()
    await add_episode(run.engine, GROUP, Branch(0), Branch(4, [said("q", "a")]))
    assert [score.reward for score in await run.score(0)] == [1.0]
    assert {index: status for index, (status, *_) in (await run.stored()).items()} == {
        0: "scored",
        1: "pending",
        4: "scored",
    }


@pytest.mark.parametrize(
    ("outcome", "turns", "error"),
    [
        (EpisodeOutcome(ended=TerminateReason.ENV_TIMEOUT), [said("", "a")], "the episode ended as env_timeout"),
        (EpisodeOutcome(ended=TerminateReason.FINISHED), [said("q", "a", end=None)], "the episode has no turn that"),
    ],
)
async def test_an_episode_without_anything_to_score_fails_with_all_its_branches(
    run: PlayedRun, outcome: EpisodeOutcome, turns: list[Any], error: str
) -> None:
    await run.open()
    await add_episode(run.engine, GROUP, Branch(0, turns), Branch(2), outcome=outcome)
    (score,) = await run.score(0)
    assert (score.outcome, score.reward) == (ScoreOutcome.FAILED, None)
    assert error in score.error
    assert [(await run.stored())[index] for index in (0, 2)] == [("failed", None, score.error)] * 2
    assert seen == []


async def test_an_episode_that_is_still_played_is_not_scored(run: PlayedRun) -> None:
    await run.open()
    await add_episode(run.engine, GROUP, Branch(0, [said("q", "a", end=None)]), outcome=None)
    with pytest.raises(ApplicationError, match=r"trajectories \[0\] are to be scored before they have finished"):
        await run.score(0)


async def test_an_episode_that_was_given_up_keeps_its_status(run: PlayedRun) -> None:
    await run.open()
    await add_episode(run.engine, GROUP, Branch(0, [said("", "a")]), Branch(2, [said("b", "b")]))
    for index in (0, 2):
        await set_trajectory(run.engine, GROUP, index, status="aborted")
    (score,) = await run.score(0)
    assert (score.outcome, score.error) == (ScoreOutcome.FAILED, "trajectory aborted")
    assert {(await run.stored())[index] for index in (0, 2)} == {("aborted", None, "")}


async def test_of_two_attempts_at_the_same_time_all_branches_have_the_same_score(run: PlayedRun) -> None:
    await run.open()
    await add_episode(run.engine, GROUP, *(Branch(index, [said("q", "a")]) for index in (0, 2, 4)))
    first, second = await asyncio.gather(run.score(0), run.score(0))
    assert first == second
    async with run.engine.connect() as connection:
        of_episode = select(Trajectory.reward, Trajectory.reward_metrics).where(Trajectory.index % EPISODES == 0)
        assert (await connection.execute(of_episode)).all() == [(1.0, {"acc": 1.0})] * 3


# --- without a reward function ---------------------------------------------------------------------------------------


@pytest.fixture
def own(run: PlayedRun, monkeypatch: pytest.MonkeyPatch) -> PlayedRun:
    """A run that was admitted without one."""
    configured = AdmittedRuns.config

    async def without(self: AdmittedRuns, *place: Any) -> RunConfig:
        config = await configured(self, *place)
        return config.model_copy(update={"reward": config.reward.model_copy(update={"function": ""})})

    monkeypatch.setattr(AdmittedRuns, "config", without)
    return run


async def test_without_a_function_an_episode_is_worth_what_its_environment_says(own: PlayedRun) -> None:
    await own.open()
    info = {"acc": True, "answer": "7", "steps": 3, "score": 9}
    outcome = EpisodeOutcome(ended=TerminateReason.MAX_TURNS_EXCEEDED, reward=-0.5, info=info)
    await add_episode(own.engine, GROUP, Branch(0, [said("", "a")]), Branch(2, [said("b", "b")]), outcome=outcome)
    assert [(score.reward, score.error) for score in await own.score(0)] == [(-0.5, "")]
    async with own.engine.connect() as connection:
        of_episode = select(Trajectory.reward, Trajectory.reward_metrics).where(Trajectory.index % EPISODES == 0)
        assert (await connection.execute(of_episode)).all() == [(-0.5, {"acc": 1.0, "steps": 3.0})] * 2
    assert seen == []


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (None, "the environment or the agent gave no reward, and reward.function is empty"),
        (EpisodeOutcome(ended=TerminateReason.FINISHED), "the environment or the agent gave no reward"),
        (
            EpisodeOutcome(ended=TerminateReason.FINISHED, reward=1.0, info={"x" * 200: 1}),
            "the episode's outcome return",
        ),
    ],
)
async def test_without_a_function_and_without_a_word_an_episode_fails(
    own: PlayedRun, outcome: EpisodeOutcome | None, error: str
) -> None:
    await own.open()
    await add_episode(own.engine, GROUP, Branch(0, [said("", "a")]), outcome=outcome)
    (score,) = await own.score(0)
    assert (score.outcome, score.reward) == (ScoreOutcome.FAILED, None)
    assert error in score.error
