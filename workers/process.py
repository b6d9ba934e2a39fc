"""What every worker process shares: connecting to the stack's Temporal, logging, and stopping cleanly on a signal."""

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

import uvloop
from temporalio.client import Client, Interceptor
from temporalio.runtime import Runtime
from temporalio.service import GrpcCompression, RPCError

from ..schemas.errors import NotOurs, PsrlError, Unreachable, UserError
from ..schemas.silence import why_silent
from ..schemas.stack import Stack, load_stack
from .converter import data_converter
from .guard import Guard
from .identity import Hold, end_process
from .semaphores import name_ours

CONNECT_TIMEOUT_S = 60.0
CONNECT_PAUSE_S = 0.5


async def join(stack: Stack) -> Client:
    """A worker's client of its stack's Temporal. Waits also while the server there is another stack's, and ends the
    process when it becomes one (L14). Raises `Unreachable` when none answers in time."""
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            return await connect_to(stack, on_foreign=end_process)
        except NotOurs:
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(CONNECT_PAUSE_S)


async def connect_to(
    stack: Stack,
    timeout_s: float = CONNECT_TIMEOUT_S,
    runtime: Runtime | None = None,
    on_foreign: Callable[[NotOurs], None] | None = None,
) -> Client:
    """A client that works with no other server than the stack's own. Raises `NotOurs`, and `Unreachable` as `connect`
    does. With `on_foreign` the server is watched, also between calls."""
    if not stack.temporal_id:
        return await connect(stack.temporal_address, stack.namespace, timeout_s, runtime)
    hold = Hold(stack.temporal_address, stack.namespace, stack.temporal_id)
    client = await connect(stack.temporal_address, stack.namespace, timeout_s, runtime, (Guard(hold),))
    hold.through(client)
    await hold.require(timeout_s)
    if on_foreign is not None:
        hold.keep(on_foreign)
    return client


async def connect(
    address: str,
    namespace: str,
    timeout_s: float = CONNECT_TIMEOUT_S,
    runtime: Runtime | None = None,
    interceptors: Sequence[Interceptor] = (),
) -> Client:
    """A client of whoever answers; it speaks our pydantic messages. Raises `Unreachable` saying what was tried and for
    how long."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            # A server that hangs takes the connection and says nothing.
            async with asyncio.timeout(max(CONNECT_PAUSE_S, deadline - time.monotonic())):
                return await Client.connect(
                    address,
                    namespace=namespace,
                    data_converter=data_converter,
                    runtime=runtime,
                    interceptors=interceptors,
                    # Our messages are ids and counts: packing them costs both sides more than sending them.
                    grpc_compression=GrpcCompression.NONE,
                )
        except (RuntimeError, ValueError, RPCError, TimeoutError) as error:
            if time.monotonic() >= deadline:
                raise Unreachable(
                    f"Temporal at {address} (namespace {namespace!r}) did not answer within {timeout_s:.0f} s: "
                    f"{why_silent(error)}. `psrl up` starts one; to use your own server, pass --temporal-address"
                ) from error
            await asyncio.sleep(CONNECT_PAUSE_S)


def run_worker(main: Callable[[Stack, asyncio.Event], Awaitable[None]]) -> None:
    """Run `main(stack, stop)` until it returns; `stop` is set by SIGINT or SIGTERM. Exits 1 with one clear line on an
    error of ours, with a traceback on any other."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        # Its own loop takes asyncio's time down by a fifth to a third, and waiting for sockets is most that workers do.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_until_signalled(main))
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
    stack.home.mkdir(parents=True, exist_ok=True)  # of a stack that the environment describes
    name_ours(stack.home)
    await main(stack, stop)
