"""Every SQL query in the pages in docs/ is one that the store answers."""

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.support.pages import Block, blocks

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("block", blocks("sql"), ids=str)
async def test_a_documented_query_runs(store: AsyncEngine, block: Block) -> None:
    async with store.connect() as connection:
        for query in filter(str.strip, block.text.split(";")):
            await connection.execute(text(query))


def test_they_are_found_in_the_pages() -> None:
    """Else the test above would prove nothing."""
    assert blocks("sql")
