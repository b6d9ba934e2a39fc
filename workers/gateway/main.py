"""The gateway process of a stack, or one copy of it."""

import asyncio
import logging
import socket
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn

from ...activities.routing.activities import RoutingActivities
from ...activities.routing.client import CoordinatorClient
from ...activities.routing.contexts import Contexts
from ...activities.store.connections import async_store
from ...activities.store.migrate import require_current
from ...activities.store.reach import require_reachable
from ...schemas.errors import UserError
from ...schemas.stack import Stack
from ..process import join
from .app import Gateway
from .capacity import Capacity, alone_with
from .store import StoredSessions, repeated
from .workflows import TemporalWorkflows

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 2048
IDLE_CONNECTION_S = 75
GRACE_S = 5
"""A turn that has not ended by then is asked for again by its client, at another copy or after the restart."""
CONNECTIONS_TO_STORE = 16


async def serve(listen: str, stack: Stack, stop: asyncio.Event) -> None:
    address = listen or stack.gateway_address
    if not address:
        raise UserError("this stack has no gateway address; allowed: --listen HOST:PORT, or PSRL_GATEWAY_ADDRESS")
    client = await join(stack)
    await asyncio.to_thread(require_reachable, stack.postgres_url, store_id=stack.store_id)
    await asyncio.to_thread(require_current, stack.postgres_url)
    store = async_store(stack.postgres_url, CONNECTIONS_TO_STORE, pre_ping=False, store_id=stack.store_id)
    coordinator = CoordinatorClient(stack.coordinator_address, stack.stack_id)
    route = repeated(RoutingActivities(coordinator, Contexts(store)).place)
    gateway = Gateway(StoredSessions(store), TemporalWorkflows(client), route, stack.stack_id)
    capacity = Capacity(gateway.sessions, gateway.workflows, gateway.models, coordinator.fleet, alone_with(store))
    looking = asyncio.create_task(capacity.run())
    try:
        await listen_at(address, gateway, stop)
    finally:
        looking.cancel()
        gateway.models.close()
        await coordinator.close()
        await store.dispose()


async def listen_at(address: str, gateway: Gateway, stop: asyncio.Event) -> None:
    """Until `stop`. Raises `UserError` when the port is taken."""
    with bound(address) as listening:
        config = uvicorn.Config(
            gateway.app(),
            log_config=None,
            access_log=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=IDLE_CONNECTION_S,
            timeout_graceful_shutdown=GRACE_S,
            lifespan="off",
        )
        server = Server(config)
        serving = asyncio.create_task(server.serve([listening]))
        log.info("gateway listens on %s", address)
        await stop.wait()
        server.should_exit = True
        await serving


def bound(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        return socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, ValueError) as error:
        raise UserError(f"the gateway cannot listen on {address}: {error}. Is the port taken?") from error


class Server(uvicorn.Server):
    """Signals are the process's own matter."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
