"""The shared servers really are what the tests believe: real, private to the process, and as the stack sets them up."""

from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client

from psrl.schemas.stack import Stack, load_stack
from psrl.schemas.temporal import SEARCH_ATTRIBUTES

pytestmark = pytest.mark.integration


async def test_the_store_is_a_migrated_postgresql(store: AsyncEngine) -> None:
    async with store.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM runs")) == 0


async def test_the_search_attributes_are_registered(temporal_client: Client) -> None:
    answer = await temporal_client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace="default")
    )
    assert set(SEARCH_ATTRIBUTES) <= set(answer.custom_attributes)


def test_the_stack_file_is_what_processes_read(stack: Stack, tmp_path: Path) -> None:
    assert load_stack(tmp_path) == stack
