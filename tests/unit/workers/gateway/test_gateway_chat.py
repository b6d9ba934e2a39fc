"""Chat completions: what a conversation becomes in the store, what is told of it, and what asking again gives."""

import asyncio
from typing import Any

import httpx
import pytest

from psrl.schemas.errors import EngineUnavailable, SessionClosed, TurnInFlight
from psrl.schemas.ids import InstanceId
from psrl.schemas.messages.data import Purpose
from psrl.schemas.status import SessionStatus
from psrl.workers.gateway.errors import ApiError
from psrl.workers.gateway.slots import Slots
from tests.support.gateway_parts import EOS, NAME, RUN, Parts
from tests.support.runs import ids_of

CHAT = f"/sessions/{NAME}/v1/chat/completions"
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello."}]
USER, ASSISTANT = 4, 5


async def ask(http: httpx.AsyncClient, messages: list[dict[str, Any]], headers: Any = None, **more: Any) -> Any:
    answer = await http.post(CHAT, json={"messages": messages, **more}, headers=headers or {})
    assert answer.status_code == 200, answer.text
    return answer.json()


def said(body: Any) -> dict[str, Any]:
    message: dict[str, Any] = body["choices"][0]["message"]
    return message


def error_of(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


async def test_a_conversation_grows_on_one_branch_and_only_what_is_new_is_rendered(
    http: httpx.AsyncClient, parts: Parts
) -> None:
    first = await ask(http, HELLO)
    messages = [*HELLO, said(first), {"role": "user", "content": "And?"}]
    second = await ask(http, messages)
    assert [said(first)["content"], said(second)["content"]] == ["answer 0", "answer 1"]
    rows = parts.sessions.rows
    assert list(rows) == [(0, 0), (0, 1)]
    assert rows[0, 0].given == [USER, *ids_of("Hello."), ASSISTANT]
    assert rows[0, 1].given == [USER, *ids_of("And?"), ASSISTANT]
    assert second["usage"] == {"prompt_tokens": 8 + 9 + 6, "completion_tokens": 9, "total_tokens": 32}
    assert parts.routed[1].prefer == "rollout-0"


async def test_an_edited_history_leaves_the_branch_where_it_was_edited(http: httpx.AsyncClient, parts: Parts) -> None:
    first = await ask(http, HELLO)
    await ask(http, [*HELLO, said(first), {"role": "user", "content": "And?"}])
    await ask(http, [*HELLO, said(first), {"role": "user", "content": "Or?"}])
    assert list(parts.sessions.rows) == [(0, 0), (0, 1), (2, 0)]
    fork = parts.sessions.rows[2, 0].fork
    assert fork is not None
    assert (fork.index, fork.turn) == (0, 0)


async def test_the_same_key_gives_the_same_turn_and_another_key_a_new_one(
    http: httpx.AsyncClient, parts: Parts
) -> None:
    one = [await ask(http, HELLO, {"idempotency-key": "k"}) for _ in range(2)]
    other = await ask(http, HELLO, {"idempotency-key": "l"})
    assert one[0] == one[1]
    assert said(other)["content"] == "answer 1"
    assert len(parts.workflows.asked) == 2


async def test_without_a_key_a_repeated_request_gets_its_turn_and_a_request_made_anew_another(
    http: httpx.AsyncClient, parts: Parts
) -> None:
    first = await ask(http, HELLO)
    again = await ask(http, HELLO, {"x-stainless-retry-count": "1"})
    anew = await ask(http, HELLO)
    assert again == first
    assert [said(first)["content"], said(anew)["content"]] == ["answer 0", "answer 1"]


async def test_a_turn_whose_gateway_was_killed_before_the_answer_is_answered_when_it_is_asked_for_again(
    http: httpx.AsyncClient, parts: Parts
) -> None:
    parts.workflows.may_play.clear()
    killed = asyncio.create_task(ask(http, HELLO))
    await parts.workflows.began.wait()
    killed.cancel()
    parts.workflows.may_play.set()
    answer = await ask(http, HELLO)
    assert said(answer)["content"] == "answer 1"
    assert list(parts.sessions.rows) == [(0, 0)]
    assert [key for _, key in parts.workflows.asked] == [parts.workflows.asked[0][1]] * 2


async def test_a_place_that_another_copy_took_is_chosen_anew(http: httpx.AsyncClient, parts: Parts) -> None:
    parts.sessions.taken_by_another = 2
    assert said(await ask(http, HELLO))["content"] == "answer 0"


async def test_a_turn_that_failed_is_503_and_the_next_request_is_another_turn(
    http: httpx.AsyncClient, parts: Parts
) -> None:
    parts.workflows.failing = [EngineUnavailable("no instance had room")]
    failed = await http.post(CHAT, json={"messages": HELLO})
    again = await ask(http, HELLO, {"x-stainless-retry-count": "1"})
    assert error_of(failed) == (503, "unavailable", None)
    assert failed.headers["retry-after"] == "1"
    assert said(again)["content"] == "answer 1"
    assert list(parts.sessions.rows) == [(0, 0), (2, 0)]


@pytest.mark.parametrize(
    ("error", "code"),
    [(SessionClosed("closing"), "session_closed"), (TurnInFlight("one at a time"), "turn_in_flight")],
)
async def test_what_the_session_refuses_is_a_conflict_that_no_client_repeats(
    http: httpx.AsyncClient, parts: Parts, error: Exception, code: str
) -> None:
    parts.workflows.failing = [error]
    refused = await http.post(CHAT, json={"messages": HELLO})
    assert error_of(refused) == (409, code, None)
    assert refused.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("status", [SessionStatus.CLOSING, SessionStatus.CLOSED])
async def test_a_session_that_closes_takes_no_turn_but_tells_those_that_it_had(
    http: httpx.AsyncClient, parts: Parts, status: SessionStatus
) -> None:
    first = await ask(http, HELLO, {"idempotency-key": "k"})
    parts.sessions.status = status
    refused = await http.post(CHAT, json={"messages": HELLO})
    assert error_of(refused)[:2] == (409, "session_closed")
    assert await ask(http, HELLO, {"idempotency-key": "k"}) == first
    assert len(parts.sessions.rows) == 1


async def test_two_turns_at_once_on_a_named_branch_are_a_conflict_and_unnamed_ones_are_branches(
    http: httpx.AsyncClient, parts: Parts
) -> None:
    parts.workflows.may_play.clear()
    running = asyncio.create_task(ask(http, HELLO, {"x-smg-tito-trajectory-id": "0"}))
    await parts.workflows.began.wait()
    other = [{"role": "user", "content": "Other."}]
    refused = await http.post(CHAT, json={"messages": other}, headers={"x-smg-tito-trajectory-id": "0"})
    beside = asyncio.create_task(ask(http, other))
    parts.workflows.may_play.set()
    await asyncio.gather(running, beside)
    assert error_of(refused)[:2] == (409, "turn_in_flight")
    assert list(parts.sessions.rows) == [(0, 0), (2, 0)]


async def test_what_is_trained_on_is_sampled_as_the_run_says_and_the_answer_says_what_was_not_heeded(
    http: httpx.AsyncClient, parts: Parts
) -> None:
    asked = {"messages": HELLO, "temperature": 0.2, "top_p": 1, "seed": 3, "max_tokens": 4, "tool_choice": "required"}
    answer = await http.post(CHAT, json=asked)
    assert answer.headers["x-psrl-ignored"] == "temperature, seed, tool_choice"
    sampling = parts.workflows.asked[0][0].sampling
    assert (sampling.temperature, sampling.max_tokens) == (1.0, 4)
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    parts.sessions.purpose = Purpose.OUTSIDE
    free = await http.post(CHAT, json=asked)
    assert parts.workflows.asked[1][0].sampling.temperature == 0.2
    assert free.headers["x-psrl-ignored"] == "seed, tool_choice"


async def test_a_prompt_that_fills_the_context_is_refused_by_its_code(http: httpx.AsyncClient, parts: Parts) -> None:
    long = [{"role": "user", "content": "x" * 998}]
    refused = await http.post(CHAT, json={"messages": long})
    assert error_of(refused) == (400, "context_length_exceeded", "messages")
    assert not parts.sessions.rows
    await ask(http, [{"role": "user", "content": "x" * 990}])
    assert parts.workflows.asked[0][0].sampling.max_tokens == 8


async def test_answers_carry_the_labels_of_the_session_and_where_they_were_played(
    http: httpx.AsyncClient, parts: Parts
) -> None:
    pinned = {"x-base-worker-id": "rollout-1", "x-force-pin-once": "true"}
    answer = await http.post(CHAT, json={"messages": HELLO}, headers=pinned)
    told = {name: answer.headers[name] for name in ("x-request-id", "x-version-tag", "x-base-worker-id")}
    assert told == {"x-request-id": "r", "x-version-tag": "0", "x-base-worker-id": "rollout-0"}
    assert answer.headers["x-smg-tito-trajectory-id"] == "0"
    assert parts.routed[0].prefer == InstanceId("rollout-1")


async def test_log_probs_and_ids_are_those_that_were_sampled(http: httpx.AsyncClient, parts: Parts) -> None:
    body = await ask(http, HELLO, logprobs=True, return_token_ids=True)
    choice = body["choices"][0]
    assert choice["token_ids"] == [*ids_of("answer 0"), EOS]
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == "answer 0<|eos|>"
    assert {entry["logprob"] for entry in choice["logprobs"]["content"]} == {-0.5}


async def test_when_all_places_are_taken_a_turn_is_refused_with_429(http: httpx.AsyncClient, parts: Parts) -> None:
    parts.gateway.turns._slots = Slots(0)
    refused = await http.post(CHAT, json={"messages": HELLO})
    assert error_of(refused)[:2] == (429, "queue_full")
    assert refused.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", (400, "invalid_json", None)),
        (b'"text"', (400, "invalid_json", None)),
        (b"\xff", (400, "invalid_json", None)),
        ({"messages": []}, (400, "invalid_value", "messages")),
        ({}, (400, "invalid_value", "messages")),
        ({"messages": HELLO, "max_tokens": -1}, (400, "invalid_value", "max_tokens")),
        ({"messages": HELLO, "max_completion_tokens": 0}, (400, "invalid_value", "max_completion_tokens")),
        ({"messages": HELLO, "model": "gpt-none"}, (404, "model_not_found", "model")),
        ({"messages": HELLO, "n": 2}, (400, "unsupported_value", "n")),
        ({"messages": HELLO, "stop": ["x"]}, (400, "unsupported_value", "stop")),
        ({"messages": HELLO, "top_logprobs": 2}, (400, "unsupported_value", "top_logprobs")),
        ({"messages": HELLO, "tool_choice": "sometimes"}, (400, "unsupported_value", "tool_choice")),
        (
            {"messages": HELLO, "response_format": {"type": "json_object"}},
            (400, "unsupported_value", "response_format"),
        ),
        ({"messages": HELLO, "tools": [{"type": "function"}]}, (400, "invalid_tool", "tools.0.function")),
        (
            {"messages": HELLO, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 5}}}]},
            (400, "invalid_tool", "tools.0.function"),
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            (400, "invalid_messages", None),
        ),
        ({"messages": [{"content": "no role"}]}, (400, "invalid_messages", None)),
        (b'{"messages": [' + b" " * (8 * 1024 * 1024) + b"]}", (413, "request_too_large", None)),
    ],
    ids=lambda value: str(value)[:60] if not isinstance(value, tuple) else "",
)
async def test_bad_input_is_a_clear_refusal_and_the_session_lives_on(
    http: httpx.AsyncClient, parts: Parts, body: Any, told: tuple[int, str, str | None]
) -> None:
    sent = {"content": body} if isinstance(body, bytes) else {"json": body}
    assert error_of(await http.post(CHAT, **sent)) == told
    assert not parts.sessions.rows
    assert said(await ask(http, HELLO, model=RUN))["content"] == "answer 0"


async def test_an_error_of_ours_that_nobody_foresaw_is_no_answer(http: httpx.AsyncClient, parts: Parts) -> None:
    parts.workflows.failing = [RuntimeError("defect")]
    with pytest.raises(RuntimeError, match="defect"):
        await http.post(CHAT, json={"messages": HELLO})


def test_an_api_error_says_when_to_come_again() -> None:
    assert ApiError(503, "unavailable", "away").headers == {"Retry-After": "1"}
