"""Sessions that hang for want of KV cache and continue when there is room, in a real gateway process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client

from psrl.schemas.stack import Stack
from tests.support.gateway_site import GatewaySite, gateway_site, make_talking_model
from tests.support.scripted_engine import Script

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
STRATEGY = {"thunder_agent": {"enable": True, "check_interval_in_ms": 100, "buffer_per_session": 0}}
ROOM = 45
"""Two conversations of one turn, and not three."""


@pytest.fixture
async def site(temporal_client: Client, stack: Stack, store: AsyncEngine, tmp_path: Path) -> AsyncIterator[GatewaySite]:
    model = make_talking_model(tmp_path / "talking-model")
    settings: dict[str, Any] = {"rollout_coordination": {"session_strategy": STRATEGY}}
    async with gateway_site(
        temporal_client, stack, store, model, ["answer 0"], script=Script(kv_tokens=ROOM), **settings
    ) as opened:
        yield opened


async def test_the_smallest_session_of_a_full_instance_hangs_until_another_has_ended(site: GatewaySite) -> None:
    headers = {"authorization": f"Bearer {site.run_token}"}
    async with httpx.AsyncClient(base_url=site.url, headers=headers, timeout=120) as http:
        opened = [(await http.post("/sessions")).json() for _ in range(3)]
        for number, one in enumerate(opened):
            await said(site, one, "Hello" + "." * number)
        await until(http, {opened[0]["session_id"]: "hung"})
        waiting = asyncio.create_task(said(site, opened[0], "Anyone there?"))
        await http.delete(f"/sessions/{opened[1]['session_id']}")
        assert await waiting == "answer 0"
        listed = {one["session_id"]: one["hang_state"] for one in (await http.get("/control/sessions")).json()}
    assert set(listed) == {opened[0]["session_id"], opened[2]["session_id"]}


async def said(site: GatewaySite, opened: dict[str, str], text: str) -> str | None:
    async with openai.AsyncOpenAI(base_url=site.url + opened["url"], api_key=opened["token"], timeout=120) as client:
        messages: Any = [{"role": "user", "content": text}]
        answer = await client.chat.completions.create(model=opened["model"], messages=messages)
    return answer.choices[0].message.content


async def until(http: httpx.AsyncClient, states: dict[str, str]) -> None:
    """The store tells nobody of a session that hangs."""
    async with asyncio.timeout(60):
        while True:
            listed = {one["session_id"]: one["hang_state"] for one in (await http.get("/control/sessions")).json()}
            if all(listed[name] == state for name, state in states.items()):
                return
            await asyncio.sleep(0.02)
