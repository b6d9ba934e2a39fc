"""Stock clients in front of the gateway, and what the store holds of their conversations."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client
from typer.testing import CliRunner

from psrl.activities.sessions.sessions import find_session
from psrl.activities.sessions.view import BranchView, branches_of
from psrl.schemas.ids import SessionId, session_workflow
from psrl.schemas.stack import Stack
from psrl.workers.cli.commands import app
from tests.support.gateway_site import ADD, GatewaySite, gateway_site, make_talking_model, spoken

pytestmark = pytest.mark.integration

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": %d}}\n</tool_call>'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_talking_model(tmp_path_factory.mktemp("talking-model"))


@pytest.fixture
async def site(temporal_client: Client, stack: Stack, store: AsyncEngine, model: Path) -> AsyncIterator[GatewaySite]:
    async with gateway_site(temporal_client, stack, store, model, ["answer 0", "answer 1", "answer 2"]) as opened:
        yield opened


@pytest.fixture
async def http(site: GatewaySite) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {site.run_token}"}
    async with httpx.AsyncClient(base_url=site.url, headers=headers, timeout=250) as client:
        yield client


async def open_session(http: httpx.AsyncClient, **headers: str) -> dict[str, str]:
    answer = await http.post("/sessions", headers=headers)
    assert answer.status_code == 201, answer.text
    opened: dict[str, str] = answer.json()
    return opened


async def branches(site: GatewaySite, name: str) -> list[BranchView]:
    session = await find_session(site.store, site.run_id, SessionId(name))
    assert session is not None
    return await branches_of(site.store, session)


def agent(site: GatewaySite, opened: dict[str, str], **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=site.url + opened["url"], api_key=opened["token"], **options)


def five_turns_with_tools(client: openai.OpenAI, model: str, streaming: bool) -> list[Any]:
    """As an agent does: what the policy calls is called, until it calls nothing."""
    messages: list[Any] = [{"role": "user", "content": "Count."}]
    for _ in range(5):
        if streaming:
            with client.chat.completions.stream(model=model, messages=messages, tools=[ADD]) as events:
                for _ in events:
                    pass
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(model=model, messages=messages, tools=[ADD]).choices[0].message
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in message.tool_calls or []:
            asked = json.loads(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(asked["a"] + asked["b"])})
    return messages


@pytest.mark.timeout(400)
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
async def test_the_stock_client_drives_five_turns_with_tools_and_the_stored_ids_are_the_engines(
    temporal_client: Client, stack: Stack, store: AsyncEngine, model: Path, streaming: bool
) -> None:
    said = [*(CALL % number for number in range(1, 5)), "Done."]
    async with gateway_site(temporal_client, stack, store, model, said, agentic_rl={"tool_parser": "hermes"}) as site:
        headers = {"authorization": f"Bearer {site.run_token}"}
        async with httpx.AsyncClient(base_url=site.url, headers=headers, timeout=300) as http:
            opened = await open_session(http)
            client = openai.OpenAI(base_url=site.url + opened["url"], api_key=opened["token"], max_retries=0)
            with client:
                messages = await asyncio.to_thread(five_turns_with_tools, client, opened["model"], streaming)
            stored = await branches(site, opened["session_id"])
        given = site.engine.requests
    assert [message["role"] for message in messages] == ["user", *["assistant", "tool"] * 4, "assistant"]
    assert [message["content"] for message in messages if message["role"] == "tool"] == ["2", "3", "4", "5"]
    assert messages[-1]["content"] == "Done."
    (branch,) = stored
    assert [turn.token_ids for turn in branch.turns] == [spoken(text) for text in said]
    assert [branch.token_ids[: turn.prompt_tokens] for turn in branch.turns] == [list(r.prompt_ids) for r in given]
    assert branch.turns[0].logprobs[:2] == [-0.125, -0.25]


@pytest.mark.timeout(300)
async def test_a_gateway_that_is_killed_in_mid_turn_loses_nothing(site: GatewaySite, http: httpx.AsyncClient) -> None:
    opened = await open_session(http)
    site.engine.script.manual = True
    async with agent(site, opened, max_retries=50) as client:
        messages: list[Any] = [{"role": "user", "content": "Hello."}]
        asking = asyncio.create_task(client.chat.completions.create(model=opened["model"], messages=messages))
        await site.engine.until_running(1)
        site.kill_gateway()
        await site.engine.allow(100)
        await site.start_gateway()
        answer = await asking
    assert answer.choices[0].message.content == "answer 0"
    (branch,) = await branches(site, opened["session_id"])
    assert [turn.token_ids for turn in branch.turns] == [spoken("answer 0")]
    assert len(site.engine.requests) == 1


@pytest.mark.timeout(300)
async def test_strangers_and_agents_of_other_sessions_are_kept_out(site: GatewaySite, http: httpx.AsyncClient) -> None:
    printed = CliRunner(env={"PSRL_HOME": str(site.stack.home)}).invoke(app, ["session", "token", site.run_id])
    assert printed.output.strip() == site.run_token
    mine, other = await open_session(http), await open_session(http)
    body = {"messages": [{"role": "user", "content": "Hello."}]}

    async def status(method: str, path: str, token: str | None) -> int:
        headers = {"authorization": f"Bearer {token}"} if token else {"authorization": ""}
        sent = {"json": body} if method == "POST" else {}
        return (await http.request(method, path, headers=headers, **sent)).status_code

    chat = f"{mine['url']}/chat/completions"
    assert await status("POST", chat, mine["token"]) == 200
    assert await status("POST", chat, site.run_token) == 200
    assert await status("POST", chat, other["token"]) == 403
    assert await status("POST", chat, "stranger") == 401
    assert await status("POST", chat, None) == 401
    too_large = await http.post(chat, content=b" " * 10_000_000)
    assert (too_large.status_code, await status("POST", chat, mine["token"])) == (413, 200)
    assert await status("GET", "/sessions/000000-t09", site.run_token) == 404
    assert await status("GET", "/control/sessions", mine["token"]) == 403
    assert await status("POST", "/sessions", mine["token"]) == 403


@pytest.mark.timeout(300)
async def test_a_session_is_opened_once_hung_continued_listed_shown_and_closed(
    site: GatewaySite, http: httpx.AsyncClient
) -> None:
    opened = [await open_session(http, **{"idempotency-key": "k", "x-prompt-id": "p"}) for _ in range(2)]
    assert opened[0] == opened[1]
    name = opened[0]["session_id"]
    hung = await http.post("/control/hang", json=[name, "000000-t09"])
    async with agent(site, opened[0], max_retries=0) as client:
        messages: list[Any] = [{"role": "user", "content": "Hello."}]
        asking = asyncio.create_task(client.chat.completions.create(model=opened[0]["model"], messages=messages))
        listed = await until_in_flight(http)
        continued = await http.post("/control/continue", json={"sessions": [{"session_id": name}]})
        answer = await asking
    shown = (await http.get(f"/sessions/{name}")).json()
    closed = (await http.delete(f"/sessions/{name}")).json()
    late = await http.post(f"{opened[0]['url']}/chat/completions", json={"messages": messages})
    assert hung.json() == {"hung": [name], "deferred": [], "missing": ["000000-t09"]}
    assert (listed["hang_state"], listed["status"]) == ("hung", "generate")
    assert continued.json() == {"continued": [name], "missing": []}
    assert answer.choices[0].message.content == "answer 0"
    assert shown["labels"] == {"x-prompt-id": "p"}
    record = shown["trajectories"][0]["records"][0]
    assert (record["output_token_ids"], record["versions"]) == (spoken("answer 0"), [0] * 9)
    assert (closed["status"], late.status_code) == ("closed", 409)
    described = await site.client.get_workflow_handle(session_workflow(site.run_id, SessionId(name))).describe()
    assert described.status is not None
    assert described.status.name == "COMPLETED"


async def until_in_flight(http: httpx.AsyncClient) -> dict[str, Any]:
    """The store tells nobody that the turn was placed."""
    async with asyncio.timeout(60):
        while True:
            (listed,) = (await http.get("/control/sessions")).json()
            if listed["inflight"]:
                found: dict[str, Any] = listed
                return found
            await asyncio.sleep(0.02)
