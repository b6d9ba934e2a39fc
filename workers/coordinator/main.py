"""`python -m psrl.workers.coordinator.main`: the coordinator process of a stack."""

import asyncio

from ...schemas.stack import Stack
from ..process import run_worker
from .server import GRACE_S, start_server


async def serve(stack: Stack, stop: asyncio.Event) -> None:
    server, _ = await start_server(stack.coordinator_address, stack.stack_id)
    await stop.wait()
    await server.stop(GRACE_S)


if __name__ == "__main__":
    run_worker(serve)
