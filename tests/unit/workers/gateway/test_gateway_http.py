"""What the gateway does beside chat: completions, streams, models, health, metrics, control, and whom it lets in."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from psrl.schemas.errors import EngineUnavailable
from psrl.schemas.messages.sessions import SessionRecord
from psrl.schemas.status import SessionStatus
from psrl.workers.gateway.stream import Streams
from tests.support.gateway_parts import EOS, GROUP, NAME, RUN, RUN_TOKEN, TOKEN, Parts, gateway_parts
from tests.support.runs import ids_of

BASE = f"/sessions/{NAME}/v1"
HELLO: list[Any] = [{"role": "user", "content": "Hello."}]
RUNS = {"authorization": f"Bearer {RUN_TOKEN}"}


def events_of(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_a_stream_says_what_the_whole_answer_says(http: httpx.AsyncClient, parts: Parts) -> None:
    client = openai.AsyncOpenAI(base_url=f"http://gateway{BASE}", api_key=TOKEN, http_client=http)
    async with client.chat.completions.stream(
        model=RUN, messages=HELLO, stream_options={"include_usage": True}, logprobs=True
    ) as stream:
        async for _ in stream:
            pass
        done = await stream.get_final_completion()
    whole = await client.chat.completions.create(
        model=RUN, messages=HELLO, extra_headers={"x-stainless-retry-count": "1"}
    )
    assert done.choices[0].message.content == "answer 0"
    assert done.choices[0].finish_reason == "stop"
    assert done.usage is not None
    assert done.usage.total_tokens == 8 + 9
    assert done.choices[0].logprobs is not None
    assert len(done.choices[0].logprobs.content or []) == 9
    assert whole.choices[0].message.content == "answer 1", "another body is another request"


async def test_a_stream_that_cannot_begin_has_the_status_of_its_error(http: httpx.AsyncClient, parts: Parts) -> None:
    parts.workflows.failing = [EngineUnavailable("away")]
    refused = await http.post(f"{BASE}/chat/completions", json={"messages": HELLO, "stream": True})
    assert refused.status_code == 503


async def test_a_long_turn_begins_its_stream_early_and_then_tells_of_an_error_in_it(
    http: httpx.AsyncClient, parts: Parts
) -> None:
    parts.gateway.streams = Streams(quiet_s=0.01)
    parts.workflows.may_play.clear()
    parts.workflows.failing = [EngineUnavailable("away")]
    asking = asyncio.create_task(http.post(f"{BASE}/chat/completions", json={"messages": HELLO, "stream": True}))
    await parts.workflows.began.wait()
    await asyncio.sleep(0.05)
    parts.workflows.may_play.set()
    answer = await asking
    assert answer.status_code == 200
    assert answer.text.startswith(": the turn is being played\n\n")
    assert json.loads(answer.text.split("data: ")[1])["error"]["code"] == "unavailable"


@pytest.mark.parametrize("prompt", ["Say.", [60, 61]], ids=["text", "ids"])
async def test_a_completion_is_a_branch_of_its_own(http: httpx.AsyncClient, parts: Parts, prompt: Any) -> None:
    asked = {"prompt": prompt, "logprobs": 1, "return_token_ids": True}
    first = (await http.post(f"{BASE}/completions", json=asked)).json()
    await http.post(f"{BASE}/completions", json=asked)
    streamed = await http.post(f"{BASE}/completions", json={**asked, "stream": True})
    choice = first["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("answer 0", "stop")
    assert choice["token_ids"] == [*ids_of("answer 0"), EOS]
    assert choice["logprobs"]["text_offset"][:2] == [0, 1]
    assert list(parts.sessions.rows) == [(0, 0), (2, 0), (4, 0)]
    assert parts.sessions.rows[0, 0].given == (prompt if isinstance(prompt, list) else ids_of(prompt))
    assert events_of(streamed.text)[0]["choices"][0]["text"] == "answer 2"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"prompt": [99999]}, "prompt"),
        ({"prompt": "x", "echo": True}, "echo"),
        ({"prompt": "x", "logprobs": 5}, "logprobs"),
        ({"prompt": ""}, "prompt"),
    ],
)
async def test_a_completion_that_cannot_be_served_is_refused(
    http: httpx.AsyncClient, asked: dict[str, Any], param: str
) -> None:
    refused = await http.post(f"{BASE}/completions", json=asked)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_a_tool_that_nests_deeper_than_we_read_is_refused(http: httpx.AsyncClient) -> None:
    schema: dict[str, Any] = {}
    for _ in range(800):
        schema = {"items": schema}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    refused = await http.post(f"{BASE}/chat/completions", json={"messages": HELLO, "tools": [tool]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_value")


async def test_models_are_those_of_the_run(http: httpx.AsyncClient, tiny_model_dir: Path) -> None:
    models = (await http.get(f"{BASE}/models")).json()["data"]
    assert [(model["id"], model["max_model_len"]) for model in models] == [(RUN, 1000), (tiny_model_dir.name, 1000)]


async def test_health_and_metrics_need_no_token_and_count(http: httpx.AsyncClient, parts: Parts) -> None:
    await http.post(f"{BASE}/chat/completions", json={"messages": HELLO})
    health = await http.get("/healthz", headers={"authorization": ""})
    page = (await http.get("/metrics", headers={"authorization": ""})).text
    assert health.json() == {"status": "ok", "stack_id": "stack-1"}
    assert 'psrl_gateway_turns_total{outcome="played"} 1.0' in page
    assert 'psrl_gateway_answers_total{status="200"} 2.0' in page
    assert "psrl_gateway_turns_in_flight 0.0" in page


async def test_the_gateway_of_another_stack_refuses(http: httpx.AsyncClient) -> None:
    refused = await http.get("/healthz", headers={"x-psrl-stack": "stack-2"})
    ours = await http.get("/healthz", headers={"x-psrl-stack": "stack-1"})
    assert (refused.status_code, ours.status_code) == (421, 200)
    assert "stack-1" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("token", "name", "status"),
    [
        ("", NAME, 401),
        ("stranger", NAME, 401),
        (TOKEN, "000007-t01", 403),
        ("other", NAME, 404),
        (RUN_TOKEN, NAME, 200),
    ],
    ids=["none", "stranger", "another session", "another run", "its run"],
)
async def test_a_token_opens_its_own_only(http: httpx.AsyncClient, token: str, name: str, status: int) -> None:
    headers = {"authorization": f"Bearer {token}"}
    assert (await http.get(f"/sessions/{name}/v1/models", headers=headers)).status_code == status


async def test_anthropics_clients_send_their_token_in_a_header_of_their_own(http: httpx.AsyncClient) -> None:
    headers = {"authorization": "", "x-api-key": TOKEN}
    assert (await http.get(f"{BASE}/models", headers=headers)).status_code == 200


async def test_a_url_that_is_none_is_refused_in_the_form_of_the_protocol(http: httpx.AsyncClient) -> None:
    unknown = await http.get("/v2/nothing")
    wrong = await http.get(f"{BASE}/chat/completions")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "invalid_request")


async def test_a_session_that_is_opened_twice_with_one_key_is_one(http: httpx.AsyncClient, parts: Parts) -> None:
    headers = {**RUNS, "x-prompt-id": "p", "idempotency-key": "k", "x-unknown": "dropped"}
    opened = [(await http.post("/sessions", headers=headers)).json() for _ in range(2)]
    other = (await http.post("/sessions", headers=RUNS)).json()
    assert opened[0] == opened[1]
    assert other["session_id"] != opened[0]["session_id"]
    assert [new.labels for new in parts.sessions.opened] == [{"x-prompt-id": "p"}, {}]
    shown = await http.get(
        f"/sessions/{opened[0]['session_id']}", headers={"authorization": f"Bearer {opened[0]['token']}"}
    )
    assert shown.json()["labels"] == {"x-prompt-id": "p"}


@pytest.mark.parametrize("header", [{"x-version-tag": "-1"}, {"x-is-sticky": "maybe"}, {"x-prompt-id": "p" * 501}])
async def test_a_session_with_a_label_that_is_none_is_refused(http: httpx.AsyncClient, header: dict[str, str]) -> None:
    refused = await http.post("/sessions", headers={**RUNS, **header})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(header)))


async def test_sessions_are_listed_hung_and_continued_by_the_run_alone(http: httpx.AsyncClient, parts: Parts) -> None:
    listed = (await http.get("/control/sessions", headers=RUNS)).json()
    hung = await http.post("/control/hang", headers=RUNS, json=[{"session_id": NAME, "reason": "full"}, "000007-t09"])
    item = {"session_id": NAME, "base_worker_id": "rollout-1"}
    continued = await http.post("/control/continue", headers=RUNS, json={"sessions": [item]})
    bad = await http.post("/control/hang", headers=RUNS, json={"sessions": 3})
    assert listed[0] == {
        "session_id": NAME,
        "base_worker_id": "rollout-0",
        "status": "env",
        "hang_state": "running",
        "inflight": 0,
        "total_tokens": 7,
        "closing": False,
    }
    assert hung.json() == {"hung": [NAME], "deferred": [], "missing": ["000007-t09"]}
    assert parts.workflows.hung[NAME] == "full"
    assert continued.json() == {"continued": [NAME], "missing": []}
    assert parts.workflows.continued[NAME] == "rollout-1"
    assert bad.status_code == 400
    assert [(await http.post("/control/hang", json=[NAME])).status_code] == [403]


async def test_a_hang_that_waits_for_its_turn_is_told_as_deferred(
    http: httpx.AsyncClient, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pending(run_id: str, name: str) -> SessionRecord:
        status = SessionStatus.RUNNING
        return SessionRecord(run_id=RUN, session_id=NAME, group_id=GROUP, status=status, hang_pending=True)

    monkeypatch.setattr(parts.workflows, "record", pending)
    hung = await http.post("/control/hang", headers=RUNS, json=[NAME])
    assert hung.json() == {"hung": [], "deferred": [NAME], "missing": []}


async def test_a_session_that_is_deleted_is_closed_and_shows_what_it_was(http: httpx.AsyncClient, parts: Parts) -> None:
    await http.post(f"{BASE}/chat/completions", json={"messages": HELLO})
    closed = (await http.delete(f"/sessions/{NAME}")).json()
    assert parts.workflows.closed_for == {NAME: "deleted"}
    assert closed["status"] == "closed"
    (branch,) = closed["trajectories"]
    assert branch["accumulated_token_ids"] == [4, *ids_of("Hello."), 5, *ids_of("answer 0"), EOS]
    assert branch["records"][0]["prompt_token_count"] == 8


async def test_a_model_without_a_chat_template_that_fits_is_an_error_that_names_it(tmp_path: Path) -> None:
    parts = gateway_parts(tmp_path)
    transport = httpx.ASGITransport(parts.gateway.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        answer = await client.get(f"{BASE}/models", headers={"authorization": f"Bearer {TOKEN}"})
    parts.gateway.models.close()
    assert answer.status_code == 500
    assert f"model.path={tmp_path}" in answer.json()["error"]["message"]
