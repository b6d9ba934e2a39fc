"""`psrl session`, and the plain Temporal command, on a real session with a gateway in front."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client
from typer.testing import CliRunner

from psrl.schemas.ids import SessionId, session_workflow
from psrl.schemas.stack import Stack
from psrl.workers.cli.commands import app
from tests.support.gateway_site import GatewaySite, gateway_site, make_talking_model
from tests.support.temporal import temporal_binary

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_talking_model(tmp_path_factory.mktemp("talking-model"))


@pytest.fixture
async def site(temporal_client: Client, stack: Stack, store: AsyncEngine, model: Path) -> AsyncIterator[GatewaySite]:
    async with gateway_site(temporal_client, stack, store, model, ["answer 0"]) as opened:
        yield opened


async def psrl(*arguments: str, status: int = 0) -> str:
    done = await asyncio.to_thread(CliRunner().invoke, app, list(arguments))
    assert done.exit_code == status, done.output
    return done.output


async def opened(site: GatewaySite) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {site.run_token}"}
    async with httpx.AsyncClient(base_url=site.url, headers=headers, timeout=60) as http:
        answer = await http.post("/sessions")
    found: dict[str, Any] = answer.json()
    return found


async def test_a_session_is_listed_shown_hung_continued_and_closed(site: GatewaySite) -> None:
    run = str(site.run_id)
    assert "no open session" in await psrl("session", "list", run)
    at = await opened(site)
    name = at["session_id"]
    assert f"session {name} hangs: it starts no turn until" in await psrl("session", "hang", run, name)
    assert "running" in await psrl("session", "list", run) or "hung" in await psrl("session", "list", run)
    assert "is hung: asked for by a person\nno turn yet" in await psrl("session", "show", run, name)
    client = openai.AsyncOpenAI(base_url=site.url + at["url"], api_key=at["token"], max_retries=0)
    async with client:
        said: list[Any] = [{"role": "user", "content": "Hello."}]
        asking = asyncio.create_task(client.chat.completions.create(model=at["model"], messages=said))
        told = await psrl("session", "continue", run, name, "--instance", "rollout-0")
        assert told == f"session {name} continues; its next turn begins on rollout-0 if there is room\n"
        assert (await asking).choices[0].message.content == "answer 0"
    shown = await psrl("session", "show", run, name)
    assert "trajectory 0 turn 0: " in shown
    assert " in, 9 out, v0 on rollout-0, " in shown
    assert "stop" in shown
    assert "closes when its turns in flight have ended" in await psrl("session", "close", run, name)
    await site.client.get_workflow_handle(session_workflow(site.run_id, SessionId(name))).result()
    assert f"session {name} is closed" in await psrl("session", "hang", run, name, status=1)
    assert "no open session" in await psrl("session", "list", run)
    assert f"{name:20} closed   1 branch, 1 turn, 9 tokens" in await psrl("session", "list", run, "--all")


async def test_what_is_not_there_is_named_with_what_is(site: GatewaySite) -> None:
    name = (await opened(site))["session_id"]
    told = await psrl("session", "hang", str(site.run_id), "000009-t00", status=1)
    assert f"has no session '000009-t00'; open now: {name}" in told
    told = await psrl("session", "continue", str(site.run_id), name, "--instance", "rollout-7", status=1)
    assert "--instance 'rollout-7' is none of this stack's" in told
    assert "no run 'nobody' in the store" in await psrl("session", "list", "nobody", status=1)


async def test_the_plain_temporal_command_does_the_same(site: GatewaySite) -> None:
    workflow = session_workflow(site.run_id, (await opened(site))["session_id"])

    async def temporal(*arguments: str) -> str:
        command = [temporal_binary(), "workflow", *arguments, "-w", workflow, "--address", site.stack.temporal_address]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=True)
        return str(done.stdout)

    await temporal("signal", "--name", "hang", "--input", '{"reason": "a look at it"}')
    assert '"hung"' in (answer := await temporal("query", "--type", "record", "-o", "json"))
    assert "a look at it" in answer
    await temporal("signal", "--name", "continue")
    assert '"running"' in await temporal("query", "--type", "record", "-o", "json")
    await temporal("signal", "--name", "close")
    assert '"closed"' in await temporal("result", "-o", "json")
