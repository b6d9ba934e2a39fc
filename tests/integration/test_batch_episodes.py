"""Batches of episodes with several turns and branches, from the store to what the trainer computes with."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.exceptions import ApplicationError

from psrl.activities.data.dataset import DatasetCache
from psrl.activities.data.restore import Restore
from psrl.activities.filters.scored import read_scored_groups
from psrl.activities.rewards.samples import write_scores
from psrl.activities.store.activities import StoreActivities
from psrl.activities.store.branches import Fork
from psrl.activities.store.connections import async_store
from psrl.activities.training.batch import NO_VERSION, SampledSequence, TrainBatch
from psrl.schemas.ids import GroupId
from psrl.schemas.messages.data import RestoreRequest
from psrl.schemas.messages.episodes import EpisodeOutcome, TerminateReason
from psrl.schemas.messages.rewards import Score, ScoreOutcome, ScoreRequest
from psrl.schemas.messages.training import BatchInfo, BatchRequest
from psrl.schemas.tables import BatchMember, Group, Turn
from psrl.workers.trainer.batches import read_batch
from tests.support.episodes import Branch, Said, add_episode, logprob_of, said
from tests.support.runs import RUN, admit, config_values, draw, ids_of, sums, write_jsonl
from tests.support.trainer_lab import Lab

pytestmark = pytest.mark.integration

G0 = GroupId("000000")
NEEDED, EPISODES = 2, 3


async def open_run(store: AsyncEngine, model: Path, folder: Path) -> None:
    """N 2 and N' 3."""
    psrl = {
        "rollout_n": NEEDED,
        "rollout_coordination": {"redundant_rollout": {"enable": True, "redundant_rollout_n": EPISODES}},
    }
    await admit(store, config_values(model, write_jsonl(folder / "train.jsonl", sums(4)), psrl=psrl))


@pytest.fixture
async def run(store: AsyncEngine, tiny_model_dir: Path, tmp_path: Path) -> AsyncEngine:
    await open_run(store, tiny_model_dir, tmp_path)
    await draw(store, [0], trajectories=EPISODES)
    return store


async def score(store: AsyncEngine, group: GroupId, rewards: dict[int, float]) -> None:
    """One after the other, as given."""
    for index, reward in rewards.items():
        request = ScoreRequest(run_id=RUN, group_id=group, indices=(index,), episodes=EPISODES)
        metrics = {"acc": float(reward > 0)}
        one = Score(index=index, outcome=ScoreOutcome.SCORED, reward=reward, metrics=metrics)
        async with store.begin() as connection:
            assert await write_scores(connection, request, [one])


async def make(store: AsyncEngine, buffer: int, group: GroupId) -> BatchInfo:
    return await StoreActivities(store).make_batch(BatchRequest(run_id=RUN, buffer=buffer, taken=(group,)))


async def members(store: AsyncEngine) -> list[int]:
    async with store.connect() as connection:
        return sorted(await connection.scalars(select(BatchMember.index)))


async def play(store: AsyncEngine) -> None:
    """Episode 0 has one branch; 1 three, one without a turn that ended; 2 two, the first of them empty."""
    await add_episode(store, G0, Branch(0, [said("", "ab")]))
    await add_episode(
        store,
        G0,
        Branch(1, [said("q", "abc"), said("r", "d")]),
        Branch(4, [said("s", "ef"), said("t", "cut", end=None)], Fork(1, 0)),
        Branch(7, [said("u", "lost", end=None)], Fork(4, 0)),
    )
    await add_episode(store, G0, Branch(2), Branch(5, [said("v", "ghij")]))


async def test_a_batch_takes_the_first_scored_episodes_with_all_branches_that_have_an_answer(run: AsyncEngine) -> None:
    await play(run)
    await score(run, G0, {2: 1.0, 1: 0.0, 0: 5.0})
    info = await make(run, 0, G0)
    assert await members(run) == [1, 4, 5]
    assert (info.groups, info.episodes, info.trajectories, info.tokens) == (1, 2, 3, 6 + 4)
    assert (info.reward_mean, info.reward_std, info.response_tokens_mean) == (0.5, 0.5, 5.0)
    assert info.reward_metrics == {"acc": 0.5}
    assert (info.token_staleness_min, info.token_staleness_mean) == (0, 0.0)


async def test_a_group_with_too_few_episodes_is_refused_however_many_branches_they_have(run: AsyncEngine) -> None:
    await play(run)
    await score(run, G0, {1: 0.0})
    with pytest.raises(ApplicationError, match="L10: 000000 has 1 scored trajectories of 2"):
        await make(run, 0, G0)


async def test_a_group_filter_sees_episodes(run: AsyncEngine) -> None:
    await play(run)
    await score(run, G0, {1: 0.0})
    async with run.connect() as connection:
        assert await read_scored_groups(connection, RUN, [G0], NEEDED, EPISODES) == {}
    await score(run, G0, {2: 1.0, 0: 3.0})
    async with run.connect() as connection:
        group = (await read_scored_groups(connection, RUN, [G0], NEEDED, EPISODES))[G0]
    assert [(one.index, one.reward) for one in group.trajectories] == [(1, 0.0), (2, 1.0)]
    assert group.values("acc") == [0.0, 1.0]


async def test_a_resumed_run_keeps_the_groups_that_have_enough_episodes(run: AsyncEngine) -> None:
    restore = Restore(run, DatasetCache(), None)
    await play(run)
    for rewards, kept in (({1: 0.0}, []), ({2: 1.0}, [G0])):
        await score(run, G0, rewards)
        restored = await restore.restore_run(RestoreRequest(run_id=RUN))
        assert [group.group_id for group in restored.kept] == kept


async def test_the_trainer_sees_every_branch_with_its_context_and_each_answer_once(
    run: AsyncEngine, engine: Engine
) -> None:
    await play(run)
    await score(run, G0, {2: 1.0, 1: 0.0})
    await make(run, 0, G0)
    batch = read_batch(engine, RUN, EPISODES, 0)
    whole = [ids_of(text) for text in ("qabcrd", "qabcsef", "vghij")]
    prompt = batch.sequences[0].prompt_tokens
    assert [sequence.ids.tolist()[prompt:] for sequence in batch.sequences] == whole
    assert ["".join(".x"[own] for own in sequence.mask.tolist()) for sequence in batch.sequences] == [
        ".xxx.x",
        ".....xx",
        ".xxxx",
    ]
    fork = batch.sequences[1]
    assert fork.versions.tolist() == [NO_VERSION] * 5 + [0, 0]
    assert fork.rollout.isfinite().tolist() == fork.mask.tolist()
    assert ([s.episode for s in batch.sequences], batch.episodes) == ([1, 1, 2], (0, 0, 1))
    assert [s.reward for s in batch.sequences] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("ended", "end", "truncated"),
    [
        (TerminateReason.FINISHED, "stop", False),
        (TerminateReason.FINISHED, "length", True),
        (TerminateReason.MAX_RESPONSE_LENGTH_EXCEEDED, "stop", True),
        (TerminateReason.MAX_TURNS_EXCEEDED, "stop", False),
    ],
)
async def test_an_episode_is_truncated_where_there_was_no_room_left_at_its_end(
    run: AsyncEngine, engine: Engine, ended: TerminateReason, end: str, truncated: bool
) -> None:
    """A middle answer that was cut is none: the agent went on. All branches are of the episode."""
    outcome = EpisodeOutcome(ended=ended)
    branches = (Branch(0, [said("q", "a", "length"), said("r", "b")]), Branch(3, [said("s", "c", end)]))
    await add_episode(run, G0, *branches, outcome=outcome)
    await add_episode(run, G0, Branch(1, [said("", "ab")]))
    await score(run, G0, {0: 1.0, 1: 0.0})
    await make(run, 0, G0)
    assert [s.truncated for s in read_batch(engine, RUN, EPISODES, 0).sequences] == [truncated, False, truncated]


@pytest.mark.parametrize(("mine", "its", "truncated"), [("length", "stop", True), ("stop", "length", False)])
async def test_the_last_answer_of_an_episode_may_stand_on_an_earlier_branch(
    run: AsyncEngine, engine: Engine, mine: str, its: str, truncated: bool
) -> None:
    """As of an agent that asks another one on a branch of its own, and then goes on."""
    await add_episode(run, G0, Branch(0, [said("q", "a"), said("r", "b", mine)]), Branch(3, [said("s", "c", its)]))
    await add_episode(run, G0, Branch(1, [said("", "ab")]))
    async with run.begin() as connection:
        late = update(Turn).where(Turn.index == 0, Turn.turn == 1).values(finished_at=func.now() + timedelta(hours=1))
        await connection.execute(late)
    await score(run, G0, {0: 1.0, 1: 0.0})
    await make(run, 0, G0)
    assert [s.truncated for s in read_batch(engine, RUN, EPISODES, 0).sequences] == [truncated, False, truncated]


async def test_a_step_trains_on_conversations_that_have_no_prompt_of_ours(
    run: AsyncEngine, engine: Engine, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Log-probs, their gap to the engine's, the update and the new version, of sequences that begin with what an agent
    says."""
    await play(run)
    async with run.begin() as connection:
        await connection.execute(update(Group).values(prompt_ids=b""))
    await score(run, G0, {2: 1.0, 1: 0.0})
    info = await make(run, 0, G0)
    stages = Lab(tmp_path, engine, tiny_model_dir).life()
    stages.open(RUN)
    stats = stages.log_probs(RUN, 0)
    assert (stats.tokens, stats.engine_gap_tokens, stats.untrainable_tokens) == (info.tokens, info.tokens, 0)
    assert stages.advantages(RUN, 0).std == pytest.approx(1.0, abs=1e-5)
    updated = stages.update(RUN, 0)
    assert updated.optimizer_steps == 1
    assert updated.grad_norm > 0
    assert stages.publish(RUN, 0).version == 1


# --- random conversations --------------------------------------------------------------------------------------------


@st.composite
def episodes(draw: st.DrawFn) -> list[list[Branch]]:
    """Three episodes of up to four branches, each token with an id of its own. A branch may leave any earlier one of
    its episode after any of the turns that have ended, or begin anew; its last turn may be cut."""
    ids = count(1)

    def tokens(fewest: int) -> list[int]:
        return [next(ids) for _ in range(draw(st.integers(fewest, 3)))]

    played = []
    for episode in range(EPISODES):
        branches: list[Branch] = []
        for number in range(draw(st.integers(1, 4))):
            known = [Fork(b.index, t) for b in branches for t, turn in enumerate(b.turns) if turn.end is not None]
            fork = draw(st.sampled_from([None, *known]))
            turns = []
            for turn in range(draw(st.integers(1, 3))):
                environment = tokens(0 if fork or turn else 1)
                turns.append(Said(environment, tokens(1), draw(st.sampled_from(["stop", "length"]))))
            if (number or episode == 0) and draw(st.booleans()):
                turns[-1] = Said(turns[-1].environment, tokens(0), None)
            branches.append(Branch(episode + number * EPISODES, turns, fork))
        if not any(turn.end for branch in branches for turn in branch.turns):
            branches.append(Branch(episode + len(branches) * EPISODES, [Said(tokens(1), tokens(1))]))
        played.append(branches)
    return played


def context(branches: dict[int, Branch], index: int, last: int | None = None) -> list[int]:
    """All tokens of a branch up to the end of a turn, written down from what a fork means."""
    branch = branches[index]
    before = context(branches, branch.fork.index, branch.fork.turn) if branch.fork else []
    turns = branch.turns[: None if last is None else last + 1]
    return [*before, *(t for turn in turns if turn.end for t in (*turn.environment, *turn.policy))]


def check(sequence: SampledSequence, branches: dict[int, Branch], index: int) -> None:
    assert sequence.ids.tolist() == context(branches, index)
    own = {token for turn in branches[index].turns if turn.end for token in turn.policy}
    assert sequence.mask.tolist() == [token in own for token in sequence.ids.tolist()]
    wanted = torch.tensor([logprob_of(token) for token in sequence.ids[sequence.mask].tolist()])
    assert torch.equal(sequence.rollout[sequence.mask], wanted)
    assert sequence.rollout[~sequence.mask].isnan().all()
    assert set(sequence.versions[~sequence.mask].tolist()) <= {NO_VERSION}


def check_batch(batch: TrainBatch, played: Sequence[Sequence[Branch]], chosen: Sequence[int], info: BatchInfo) -> None:
    """L2 and L5: each sampled token of a chosen episode is trained on once, in its place, and no other is."""
    branches = {branch.index: branch for episode in chosen for branch in played[episode]}
    answered = sorted(index for index, branch in branches.items() if any(turn.end for turn in branch.turns))
    for sequence, index in zip(batch.sequences, answered, strict=True):
        assert sequence.episode == index % EPISODES
        check(sequence, branches, index)
    sampled = [token for index in answered for turn in branches[index].turns if turn.end for token in turn.policy]
    assert Counter(batch.tokens.target.tolist()) == Counter(sampled)
    assert (info.tokens, info.trajectories, info.episodes) == (len(sampled), len(answered), NEEDED)
    assert batch.tokens.untrainable == 0


def test_every_sampled_token_of_random_conversations_is_trained_on_exactly_once(
    postgres_url: str, engine: Engine, tiny_model_dir: Path, tmp_path: Path
) -> None:
    store = async_store(postgres_url)
    places = count()

    async def from_store_to_batch(played: Sequence[Sequence[Branch]], chosen: Sequence[int], place: int) -> BatchInfo:
        group = GroupId(f"{place:06d}")
        row = {"purpose": "train", "epoch": 0, "position": place, "row": place, "version_tag": place}
        row |= {"prompt_ids": b"", "prompt_text": "", "data_source": "", "extra": {}}
        async with store.begin() as connection:
            await connection.execute(insert(Group).values(run_id=RUN, group_id=group, **row))
        for branches in played:
            await add_episode(store, group, *branches, version=place)
        await score(store, group, {index: float(index) for index in chosen})
        return await make(store, place, group)

    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(played=episodes(), order=st.permutations(range(EPISODES)))
    def property_holds(played: list[list[Branch]], order: list[int]) -> None:
        place = next(places)
        info = runner.run(from_store_to_batch(played, order, place))
        check_batch(read_batch(engine, RUN, EPISODES, place), played, sorted(order[:NEEDED]), info)

    with asyncio.Runner() as runner:
        runner.run(open_run(store, tiny_model_dir, tmp_path))
        property_holds()
        runner.run(store.dispose())
