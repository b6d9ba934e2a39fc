"""Updates, too, are asked of no other server than our own."""

from typing import Any, cast

import pytest
from temporalio.client import OutboundInterceptor

from psrl.schemas.errors import NotOurs
from psrl.workers.guard import Guard
from psrl.workers.identity import Hold


class Foreign(Hold):
    async def require(self, patience_s: float) -> None:
        raise NotOurs("another stack's")


class Unasked(OutboundInterceptor):
    def __init__(self) -> None:
        """It is the last."""


@pytest.mark.parametrize("call", ["start_workflow_update", "start_update_with_start_workflow"])
async def test_an_update_does_not_reach_another_stacks_server(call: str) -> None:
    guard = Guard(Foreign("127.0.0.1:1", "default", "id"))
    with pytest.raises(NotOurs):
        await getattr(guard.intercept_client(Unasked()), call)(cast(Any, None))
