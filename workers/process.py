"""What every worker process shares: connecting to Temporal, logging, and stopping cleanly on a signal."""

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.runtime import Runtime
from temporalio.service import GrpcCompression, RPCError

from ..schemas.errors import PsrlError, Unreachable, UserError
from ..schemas.silence import why_silent
from ..schemas.stack import Stack, load_stack
from .semaphores import name_ours

CONNECT_TIMEOUT_S = 60.0
CONNECT_PAUSE_S = 0.5


async def connect(
    address: str, namespace: str, timeout_s: float = CONNECT_TIMEOUT_S, runtime: Runtime | None = None
) -> Client:
    """A client that speaks our pydantic messages. Raises `Unreachable` saying what was tried and for how long."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            # A server that hangs takes the connection and says nothing.
            async with asyncio.timeout(max(CONNECT_PAUSE_S, deadline - time.monotonic())):
                return await Client.connect(
                    address,
                    namespace=namespace,
                    data_converter=pydantic_data_converter,
                    runtime=runtime,
                    # Our messages are ids and counts: packing them costs both sides more than sending them.
                    grpc_compression=GrpcCompression.NONE,
                )
        except (RuntimeError, ValueError, RPCError, TimeoutError) as error:
            if time.monotonic() >= deadline:
                raise Unreachable(
                    f"Temporal at {address} (namespace {namespace!r}) did not answer within {timeout_s:.0f} s: "
                    f"{why_silent(error)}. `psrl up` starts one; an own server is given with --temporal-address"
                ) from error
            await asyncio.sleep(CONNECT_PAUSE_S)


def run_worker(main: Callable[[Stack, asyncio.Event], Awaitable[None]]) -> None:
    """Run `main(stack, stop)` until it returns; `stop` is set by SIGINT or SIGTERM. Exits 1 with one clear line on an
    error of ours, with a traceback on any other."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        asyncio.run(_until_signalled(main))
    except UserError as error:
        sys.exit(f"error: {error}")
    except PsrlError as error:
        sys.exit(f"{type(error).__name__}: {error}")


async def _until_signalled(main: Callable[[Stack, asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    stack = load_stack()
    name_ours(stack.home)
    await main(stack, stop)
