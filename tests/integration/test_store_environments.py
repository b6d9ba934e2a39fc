"""Environments answer turns in the real store, with a real tokenizer and chat template."""

import asyncio
import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.exceptions import ApplicationError

from psrl.activities.environments import load
from psrl.activities.environments.step import Environments
from psrl.activities.environments.stored import write_step
from psrl.activities.store.codec import decode_ids
from psrl.schemas.ids import GroupId
from psrl.schemas.messages.environments import CloseEnvironments, EnvironmentStep, StepEnvironment, StoredStep
from psrl.schemas.messages.episodes import EpisodeOutcome, TerminateReason
from psrl.schemas.tables import Segment, Trajectory, Turn
from tests.support import environments as scripted
from tests.support.runs import RUN, add_segment, admit, config_values, draw, finish, ids_of, set_trajectory, sums
from tests.support.runs import write_jsonl as write
from tests.support.tiny_model import CHAT_TEMPLATE, SPECIALS, make_tiny_model

pytestmark = pytest.mark.integration

GROUP = GroupId("000000")
EOS, USER, ASSISTANT = (SPECIALS.index(name) for name in ("<|eos|>", "<|user|>", "<|assistant|>"))


@pytest.fixture
def vllm() -> None:
    """Whose import warns, and is not ours to repair."""
    pytest.importorskip("vllm", exc_type=ImportError)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("vllm.parser.parser_manager", "vllm.reasoning", "vllm.tool_parsers"):
            importlib.import_module(name)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    scripted.events.clear()
    scripted.failures.clear()
    scripted.made.clear()
    scripted.released.clear()


class Loop:
    """A run whose trajectories are played with an environment, and the process that keeps it."""

    def __init__(self, engine: AsyncEngine, model: Path, folder: Path) -> None:
        self.engine, self._model, self._folder = engine, model, folder
        self.process = Environments(engine, "queue-1")

    async def open(self, environment: str, response_tokens: int = 20, **agentic: Any) -> None:
        await self.admit(environment, response_tokens, **agentic)
        scripted.events.clear()
        await draw(self.engine, [0])

    async def admit(
        self, environment: str, response_tokens: int = 20, data: dict[str, Any] | None = None, **agentic: Any
    ) -> None:
        train = write(self._folder / "train.jsonl", sums(2))
        path = environment if environment == "tools" else f"tests.support.environments:{environment}"
        section = {"agent_loop": "multi_turn", "environment": path, **agentic}
        lengths = {"max_response_length": response_tokens, **(data or {})}
        values = config_values(self._model, train, psrl={"agentic_rl": section}, data=lengths)
        await admit(self.engine, values)

    async def says(self, text: str, turn: int = 0, index: int = 0) -> EnvironmentStep:
        """The policy, and then the environment."""
        if turn:
            await add_segment(self.engine, GROUP, index, text, seq=1, turn=turn)
            await set_trajectory(self.engine, GROUP, index, status="finished")
        else:
            await finish(self.engine, GROUP, index, text)
        return await self.step(turn, index)

    async def step(self, turn: int = 0, index: int = 0) -> EnvironmentStep:
        request = StepEnvironment(run_id=RUN, group_id=GROUP, index=index, turn=turn)
        return await self.process.step_environment(request)

    async def crash(self) -> None:
        """Another process has the next steps."""
        self.process = Environments(self.engine, "queue-2")

    async def given(self, turn: int) -> list[int]:
        """The environment's tokens at the beginning of a turn."""
        query = select(Segment.token_ids).where(Segment.turn == turn, Segment.kind == "environment")
        async with self.engine.connect() as connection:
            return [token for data in await connection.scalars(query) for token in decode_ids(data)]

    async def trajectory(self) -> Any:
        async with self.engine.connect() as connection:
            return (await connection.execute(select(Trajectory.__table__).where(Trajectory.index == 0))).one()

    async def outcome(self) -> EpisodeOutcome:
        return EpisodeOutcome.model_validate((await self.trajectory()).outcome)


@pytest.fixture
def loop(store: AsyncEngine, tiny_model_dir: Path, tmp_path: Path) -> Loop:
    return Loop(store, tiny_model_dir, tmp_path)


async def test_an_answer_becomes_the_beginning_of_the_next_turn(loop: Loop) -> None:
    await loop.open("Counting")
    step = await loop.says("abc")
    assert await loop.given(1) == [EOS, USER, *ids_of("=3"), ASSISTANT]
    assert step == EnvironmentStep(max_tokens=20 - 3 - 5, queue="queue-1")
    assert (await loop.trajectory()).status == "pending"


async def test_an_environment_that_was_overtaken_by_another_process_is_not_played_with(loop: Loop) -> None:
    """The policy heard something else than what it said."""
    await loop.open("Slow")
    request = StepEnvironment(run_id=RUN, group_id=GROUP, index=0, turn=0)
    stepping = asyncio.create_task(loop.says("abc"))
    await scripted.slow()
    async with loop.engine.begin() as connection:
        assert await write_step(connection, request, StoredStep(max_tokens=4), None, [USER, ASSISTANT])
    scripted.released.set()
    assert await stepping == EnvironmentStep(max_tokens=4)
    assert await loop.given(1) == [USER, ASSISTANT]
    await loop.process.end()
    assert scripted.events[-1] == "close"


async def test_an_environment_that_is_done_leaves_what_it_says_of_the_whole_episode(loop: Loop) -> None:
    await loop.open("Counting")
    await loop.says("abc")
    step = await loop.says("d!", turn=1)
    assert step == EnvironmentStep(ended=TerminateReason.FINISHED)
    assert await loop.outcome() == EpisodeOutcome(ended=TerminateReason.FINISHED, reward=1.0, info={"total": 5})
    assert (await loop.trajectory()).status == "finished"
    await loop.process.end()
    assert scripted.events == ["reset 1", "step 0 abc", "step 1 d!", "close"]


async def test_asked_again_it_says_what_is_stored_and_steps_nothing(loop: Loop) -> None:
    await loop.open("Counting")
    first = await loop.says("abc")
    assert await loop.step() == first
    assert scripted.events == ["reset 1", "step 0 abc"]


async def test_two_attempts_at_a_step_are_one_step(loop: Loop) -> None:
    await loop.open("Slow")
    await finish(loop.engine, GROUP, 0, "abc")
    attempts = [asyncio.create_task(loop.step()) for _ in range(2)]
    await scripted.slow()
    scripted.released.set()
    first, second = await asyncio.gather(*attempts)
    # Who was late has given its environment up: the next step goes to whom it likes.
    assert first.model_copy(update={"queue": ""}) == second.model_copy(update={"queue": ""})
    assert {first.queue, second.queue} <= {"", "queue-1"}
    assert scripted.events == ["reset 1", "slow", "step 0 abc", "close"]


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_turns": 1}, TerminateReason.MAX_TURNS_EXCEEDED),
        ({"response_tokens": 8}, TerminateReason.MAX_RESPONSE_LENGTH_EXCEEDED),
    ],
)
async def test_a_limit_that_is_reached_ends_an_episode_that_is_scored(
    loop: Loop, limits: dict[str, Any], reason: TerminateReason
) -> None:
    """Three tokens sampled and five of the environment leave no room for another where eight are allowed."""
    await loop.open("Counting", **limits)
    assert (await loop.says("abc")).ended is reason
    assert (await loop.outcome()).reward == 0.5
    assert (await loop.trajectory()).status == "finished"
    assert await loop.given(1) == []


async def test_a_turn_may_have_a_budget_of_its_own(loop: Loop) -> None:
    await loop.open("Counting", max_turn_tokens=4)
    assert (await loop.says("abc")).max_tokens == 4


async def test_another_process_repeats_what_was_done(loop: Loop) -> None:
    await loop.open("Counting")
    await loop.says("abc")
    await loop.crash()
    step = await loop.says("de", turn=1)
    assert scripted.events == ["reset 1", "step 0 abc", "reset 1", "step 0 abc", "step 1 de"]
    assert await loop.given(2) == [EOS, USER, *ids_of("=5"), ASSISTANT]
    assert step.queue == "queue-2"


async def test_another_process_restores_what_was_saved(loop: Loop) -> None:
    await loop.open("Saving")
    await loop.says("abc")
    await loop.crash()
    await loop.says("de", turn=1)
    assert scripted.events[2:] == ["restore {'total': 3}", "step 1 de"]
    assert await loop.given(2) == [EOS, USER, *ids_of("=5"), ASSISTANT]


async def test_an_environment_that_must_not_repeat_fails_its_trajectory_instead(loop: Loop) -> None:
    await loop.open("Once")
    await loop.says("abc")
    await loop.crash()
    step = await loop.says("de", turn=1)
    assert step.ended is TerminateReason.ROLLOUT_ERROR
    assert "the environment's host is gone" in step.error
    found = await loop.trajectory()
    assert (found.status, found.reward) == ("failed", None)
    assert "host is gone" in found.reward_error
    assert [event for event in scripted.events if event.startswith("step")] == ["step 0 abc"]


async def test_a_first_step_that_was_begun_is_not_repeated_either(loop: Loop) -> None:
    await loop.open("Once")
    scripted.failures.append("the process dies here")
    step = await loop.says("abc")
    assert (step.ended, step.error) == (TerminateReason.ROLLOUT_ERROR, "ValueError: the process dies here")
    assert [event for event in scripted.events if event.startswith("step")] == ["step 0 abc"]


async def test_a_step_that_fails_is_tried_again_on_an_environment_made_anew(loop: Loop) -> None:
    await loop.open("Counting")
    await loop.says("abc")
    scripted.failures.append("a moment of weakness")
    await loop.says("de", turn=1)
    assert await loop.given(2) == [EOS, USER, *ids_of("=5"), ASSISTANT]
    assert scripted.events.count("reset 1") == 2


async def test_an_environment_that_fails_on_every_try_ends_its_episode_so(loop: Loop) -> None:
    await loop.open("Counting", step_max_attempts=2)
    scripted.failures += ["again", "once"]
    step = await loop.says("abc")
    assert (step.ended, step.error) == (TerminateReason.ROLLOUT_ERROR, "ValueError: again")


async def test_a_step_that_takes_too_long_is_a_timeout(loop: Loop) -> None:
    await loop.open("Slow", step_max_attempts=1, step_timeout_s=0.2)
    step = await loop.says("abc")
    assert step.ended is TerminateReason.ENV_TIMEOUT
    assert step.error == "step took longer than psrl.agentic_rl.step_timeout_s=0.2"
    await loop.process.end()
    assert scripted.events == ["reset 1", "slow", "close"]


async def test_an_environment_that_blocks_its_event_loop_costs_nobody_else(loop: Loop) -> None:
    await loop.open("Blocking", step_max_attempts=1, step_timeout_s=1)
    assert (await loop.says("block")).ended is TerminateReason.ENV_TIMEOUT
    assert (await loop.says("abc", index=1)).ended is None


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("nothing", "step returned None; allowed: a Step"),
        ("text", "Step.messages='7'; allowed: messages"),
        ("nan", "Step.reward=nan; allowed: a finite number"),
        ("assistant", "one of the assistant"),
        ("no JSON", "Step.info is"),
        ("NUL", "the character NUL"),
    ],
)
async def test_what_a_step_may_not_return_is_a_failure_told_in_one_line(loop: Loop, returned: str, told: str) -> None:
    await loop.open("Odd", step_max_attempts=1, environment_kwargs={"returned": returned})
    step = await loop.says("abc")
    assert step.ended is TerminateReason.ROLLOUT_ERROR
    assert told in step.error


async def test_closing_ends_a_step_under_way_and_nothing_begins_anew(loop: Loop) -> None:
    await loop.open("Slow")
    await finish(loop.engine, GROUP, 0, "abc")
    stepping = asyncio.create_task(loop.step())
    await scripted.slow()
    await loop.process.close_environments(CloseEnvironments(run_id=RUN, group_id=GROUP, indices=(0,)))
    with pytest.raises(ApplicationError, match="closed while it was asked") as raised:
        await stepping
    assert raised.value.non_retryable
    await loop.process.end()
    assert scripted.events == ["reset 1", "slow", "close"]


async def test_a_step_that_is_cancelled_closes_its_environment(loop: Loop) -> None:
    await loop.open("Slow")
    await finish(loop.engine, GROUP, 0, "abc")
    stepping = asyncio.create_task(loop.step())
    await scripted.slow()
    stepping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stepping
    await loop.process.end()
    assert scripted.events == ["reset 1", "slow", "close"]


async def test_what_a_process_keeps_is_closed_when_it_ends(loop: Loop) -> None:
    await loop.open("Counting")
    await loop.says("abc")
    await loop.process.end()
    assert scripted.events == ["reset 1", "step 0 abc", "close"]


async def test_the_prompt_shows_the_environments_tools_only_where_the_template_has_a_place_for_them(loop: Loop) -> None:
    await loop.open("WithTools")
    async with loop.engine.connect() as connection:
        (notes,) = (await connection.exec_driver_sql("SELECT notes FROM runs")).one()
    assert any(note.startswith("the environment's tools are not shown to the model") for note in notes)


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ("NoStep", "lacks step"),
        ("Sync", "reset is no async function"),
        ("no_class", "is a function; allowed: a class derived from Environment"),
        ("Nowhere", "has no 'Nowhere'"),
    ],
)
async def test_what_is_no_environment_is_refused_at_admission(loop: Loop, environment: str, told: str) -> None:
    with pytest.raises(ApplicationError, match=told) as raised:
        await loop.open(environment)
    assert raised.value.type == "EnvironmentLoadError"


async def test_a_class_that_blocks_when_it_is_made_is_refused_at_admission_within_the_limit_of_a_step(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "ENDS_WITHIN_S", 0.1)
    told = r"did not say which tools it has, within psrl\.agentic_rl\.step_timeout_s=0\.5$"
    with pytest.raises(ApplicationError, match=told):
        await loop.open("Made", environment_kwargs={"at_once": 0}, step_timeout_s=0.5)


async def test_admission_makes_one_environment(loop: Loop) -> None:
    await loop.admit("Made", environment_kwargs={"at_once": 9})
    assert scripted.made == ["Made"]


async def test_an_environment_of_one_run_that_blocks_when_it_is_made_costs_no_other_run_its_texts(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process loads a run's class when it first plays it."""
    await loop.open("Made", environment_kwargs={"at_once": 2}, step_timeout_s=30)
    assert len(scripted.made) == 2  # for the admission, and for who draws prompts
    blocked = asyncio.create_task(loop.says("abc"))
    while len(scripted.made) < 3:  # noqa: ASYNC110  (written in another thread)
        await asyncio.sleep(0.01)
    try:
        async with asyncio.timeout(30):
            assert await loop.process._in_thread(lambda: "free") == "free"
    finally:
        scripted.released.set()
    assert (await blocked).ended is None


async def test_arguments_that_the_class_does_not_take_are_refused(loop: Loop) -> None:
    with pytest.raises(ApplicationError, match=r"environment_kwargs=.*unexpected keyword argument 'size'"):
        await loop.open("Counting", environment_kwargs={"size": 1})


async def test_a_turn_that_has_not_ended_is_not_answered(loop: Loop) -> None:
    await loop.open("Counting")
    with pytest.raises(ApplicationError, match="turn 0, which has not ended"):
        await loop.step()


async def test_turns_without_a_hole(loop: Loop) -> None:
    await loop.open("Counting")
    await loop.says("abc")
    async with loop.engine.connect() as connection:
        turns = (await connection.execute(select(Turn.turn, Turn.end, Turn.tokens).order_by(Turn.turn))).all()
    assert [tuple(turn) for turn in turns] == [(0, "stop", 3), (1, None, 0)]


async def test_the_policy_calls_a_tool_in_its_own_words_and_reads_what_it_says(
    store: AsyncEngine, tmp_path: Path, vllm: None
) -> None:
    """By vLLM's parser; the schemas of the tools are in the prompt, where the template has a place for them."""
    model = make_tiny_model(tmp_path / "model", context_tokens=512)
    with_tools = "{% if tools %}{{ '<|user|>' + (tools | tojson) }}{% endif %}" + CHAT_TEMPLATE
    (tmp_path / "tools.jinja").write_text(with_tools)
    loop = Loop(store, model, tmp_path)
    data = {"chat_template": str(tmp_path / "tools.jinja"), "max_prompt_length": 400}
    tools = {"tool_parser": "hermes", "tools": ["tests.support.tools:add"]}
    await loop.open("tools", response_tokens=100, data=data, **tools)
    async with store.connect() as connection:
        (prompt,) = (await connection.exec_driver_sql("SELECT DISTINCT prompt_text FROM groups")).one()
    assert '"description": "Adds two numbers."' in prompt
    call = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 5}}</tool_call>'
    assert (await loop.says(call)).ended is None
    assert await loop.given(1) == [EOS, *ids_of("<|tool|>7"), ASSISTANT]
    assert (await loop.says("7", turn=1)).ended is TerminateReason.FINISHED
    assert (await loop.outcome()).info == {"tool_calls": 1, "tool_errors": 0}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({}, "has no tools"),
        ({"tools": ["tests.support.tools:add"], "tool_parser": None}, "no call would be found"),
        ({"tools": ["tests.support.tools:add"], "tool_parser": "hermse"}, "did you mean 'hermes'"),
        ({"tools": ["tests.support.tools:silent"]}, "has no docstring"),
    ],
)
async def test_tools_that_cannot_be_called_are_refused_at_admission(
    loop: Loop, vllm: None, keys: dict[str, Any], told: str
) -> None:
    with pytest.raises(ApplicationError, match=told) as raised:
        await loop.open("tools", **{"tool_parser": "hermes", **keys})
    assert raised.value.non_retryable
