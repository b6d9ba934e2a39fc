"""The gateway over HTTP, without a network."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.gateway_parts import NAME, TOKEN, Parts, gateway_parts

BASE = f"/sessions/{NAME}/v1"


@pytest.fixture
async def parts(tiny_model_dir: Path) -> AsyncIterator[Parts]:
    made = gateway_parts(tiny_model_dir)
    yield made
    made.gateway.models.close()


@pytest.fixture
async def http(parts: Parts) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(parts.gateway.app())
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as client:
        yield client
