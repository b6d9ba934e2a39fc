"""A judge that is asked over HTTP, by a real client."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from psrl.activities.rewards.built_in.llm_judge import LlmJudge
from psrl.activities.rewards.weighted import RewardCalls
from psrl.schemas.config import RewardSection
from psrl.schemas.config.built_in_rewards import LlmJudgeOptions
from psrl.schemas.errors import RewardLoadError, UserCodeFailed
from psrl.schemas.messages.rewards import Score
from tests.support.judge_server import JudgeServer, closes, hangs, judge_server, says, sends
from tests.support.rewards import answered

TURNS = [{"policy": "Hm."}, {"environment": "?", "policy": "7."}]
SAMPLE = answered("It is 7.", prompt_text="3+4?", ground_truth="7", extra={"level": "easy"}, turns=TURNS)
ERROR = '{"error": {"message": "no", "type": "t", "code": "c"}}'


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with judge_server() as running:
        yield running


def judge(server: JudgeServer, **options: Any) -> LlmJudge:
    return LlmJudge(LlmJudgeOptions.model_validate({"base_url": server.base_url, "model": "m", **options}))


async def scored(server: JudgeServer, answers: int = 1, **values: Any) -> list[Score]:
    """As a run has it: called in the loop of the rewards, within its limits."""
    kwargs = {"base_url": server.base_url, "model": "m", **values.pop("kwargs", {})}
    reward = RewardSection.model_validate({"function": "llm_judge", "kwargs": kwargs, "max_attempts": 1, **values})
    calls = RewardCalls(reward)
    try:
        return await calls.score(range(answers), [SAMPLE] * answers)
    finally:
        calls.close()


@pytest.mark.parametrize(
    ("said", "score"),
    [
        (r"Right. \boxed{True}", 1.0),
        (r"Hm, \boxed{True}? No: \boxed{ false }.", 0.0),
        (r"\boxed{FALSE}", 0.0),
    ],
)
async def test_the_last_boxed_word_is_the_verdict(server: JudgeServer, said: str, score: float) -> None:
    server.script = [says(said)]
    assert await judge(server)(SAMPLE) == score


@pytest.mark.parametrize(
    ("said", "score"), [("Score: 7/10", 7.0), ("score: -0.5", -0.5), ("Score: yes", 1.0), ("SCORE: NO", 0.0)]
)
async def test_a_verdict_in_a_form_of_ones_own(server: JudgeServer, said: str, score: float) -> None:
    server.script = [says(said)]
    assert await judge(server, verdict=r"score:\s*(?P<score>[-\w.]+)")(SAMPLE) == score


async def test_it_is_asked_as_was_configured(server: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "swordfish")
    server.script = [says(r"\boxed{True}")]
    options = {
        "api_key_env": "JUDGE_KEY",
        "system": "Be strict.",
        "prompt": "{{ prompt }} {{ response }} {{ ground_truth }} {{ extra.level }} {{ turns[-1].policy }} $x {y}",
        "max_tokens": 7,
        "temperature": 0.5,
        "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
    }
    await judge(server, **options)(SAMPLE)
    (request,) = server.requests
    assert request == {
        "path": "/v1/chat/completions",
        "authorization": "Bearer swordfish",
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be strict."},
            {"role": "user", "content": "3+4? It is 7. 7 easy 7. $x {y}"},
        ],
        "max_tokens": 7,
        "temperature": 0.5,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    await judge(server)(SAMPLE)
    (question,) = server.requests[1]["messages"]
    assert "[Reference answer]\n7\n" in question["content"]
    assert question["content"].endswith(r"end with \boxed{True} or \boxed{False}.")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (says("I cannot say."), "the judge gave no verdict: its answer ends 'I cannot say.'"),
        (says(""), "the judge gave no verdict"),
        (says(None), "the judge gave no verdict"),
        (says("score: high"), "the judge's verdict is 'high'; allowed: a number, true, yes, false or no"),
        (says("score: nan"), "the judge's verdict is 'nan'"),
        (sends(200, '{"choices": []}'), "the judge gave no verdict"),
    ],
)
async def test_an_answer_without_a_verdict_is_a_failure(server: JudgeServer, said: Any, why: str) -> None:
    server.script = [said]
    with pytest.raises(UserCodeFailed, match=why):
        await judge(server, verdict=r"score: (?P<score>\w*)")(SAMPLE)
    (score,) = await scored(server, kwargs={"verdict": r"score: (?P<score>\w*)"})
    assert score.reward is None
    assert score.error.startswith(why)


async def test_it_waits_as_long_as_retry_after_asks(server: JudgeServer) -> None:
    """The client's own pause would be half a second or more."""
    server.script = [
        sends(429, ERROR, Retry_After="0.01"),
        sends(503, ERROR, Retry_After="0.01"),
        says(r"\boxed{True}"),
    ]
    assert await judge(server)(SAMPLE) == 1.0
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "trouble",
    [sends(500, ERROR), sends(429, ERROR), sends(200, "{"), closes],
    ids=["500", "429", "malformed", "closes"],
)
async def test_a_model_that_cannot_be_asked_is_a_failure_and_says_why(server: JudgeServer, trouble: Any) -> None:
    server.script = [trouble]
    with pytest.raises((openai.OpenAIError, ValueError)):
        await judge(server, max_retries=0)(SAMPLE)
    (score,) = await scored(server, kwargs={"max_retries": 0})
    assert score.reward is None
    assert score.error


async def test_a_passing_trouble_is_no_failure(server: JudgeServer) -> None:
    quick = {"Retry_After": "0.01"}
    server.script = [closes, sends(500, ERROR, **quick), sends(429, ERROR, **quick), says(r"\boxed{True}")]
    (score,) = await scored(server)
    assert (score.reward, len(server.requests)) == (1.0, 4)


async def test_one_that_hangs_is_given_up_within_the_time_of_a_request(server: JudgeServer) -> None:
    server.script = [hangs(server)]
    (score,) = await scored(server, kwargs={"request_s": 0.2, "max_retries": 0})
    assert score.error == "APITimeoutError: Request timed out."


async def test_one_that_is_slow_again_and_again_is_given_up_within_the_time_of_a_call(server: JudgeServer) -> None:
    server.script = [hangs(server)]
    (score,) = await scored(server, timeout_s=0.5, kwargs={"request_s": 0.2, "max_retries": 100})
    assert score.error == "no result within reward.timeout_s=0.5"


async def test_as_many_questions_at_a_time_as_are_allowed(server: JudgeServer) -> None:
    server.script = [says(r"\boxed{True}")]
    scores = await scored(server, answers=9, max_concurrency=3)
    assert [one.reward for one in scores] == [1.0] * 9
    assert server.most_at_once <= 3


async def test_it_works_in_a_process_of_its_own(server: JudgeServer) -> None:
    server.script = [says(r"\boxed{True}")]
    (score,) = await scored(server, isolation="process")
    assert score.reward == 1.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompt": "{{ promt }}"}, "prompt names promt; allowed: data_source, extra, ground_truth, messages, prompt"),
        ({"prompt": "{% if %}"}, "prompt='{% if %}': Expected an expression"),
    ],
)
def test_a_prompt_that_cannot_be_written_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(RewardLoadError) as refusal:
        LlmJudge(LlmJudgeOptions.model_validate({"base_url": "http://h/v1", "model": "m", **options}))
    assert str(refusal.value).startswith(said)


def test_a_key_that_is_not_there_is_refused_at_admission_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    options = LlmJudgeOptions(base_url="http://h/v1", model="m", api_key_env="JUDGE_KEY")
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(RewardLoadError, match="api_key_env='JUDGE_KEY', but the cpu workers have no such variable"):
        LlmJudge(options).admit()
    monkeypatch.setenv("JUDGE_KEY", "swordfish")
    assert LlmJudge(options).admit() is None
