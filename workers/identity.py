"""Whose Temporal answers at our address, and whether it is still the one that was asked (L14).

Temporal's client connects anew by itself when its server is gone, and tells nobody: a worker would then take tasks from
whatever stack has got the port meanwhile. So a plain connection is held beside the client. The kernel closes it when
the server ends, and only then can another one listen: while it is open, the server is the one that was identified.
Every task and every call looks at it first, which costs one system call. Used by `process.connect`.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from ..schemas.errors import NotOurs, Unreachable, another_stacks
from ..schemas.silence import why_silent

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 5.0
ASK_PAUSE_S = 0.1
LOOK_S = 0.5
"""About how long a worker may poll another stack's server; what it is handed meanwhile is not begun."""
RENEW_S = 30.0
"""A server closes a connection that says nothing (Temporal after two minutes): before that it is replaced."""


class Hold:
    """The open connection to an identified server. Belongs to one event loop."""

    def __init__(self, address: str, namespace: str, expected: str) -> None:
        self._address, self._namespace, self._expected = address, namespace, expected
        self._client: Client | None = None
        self._held: int | None = None
        """File descriptor of the connection."""
        self._taking = asyncio.Lock()
        self._taken = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    def through(self, client: Client) -> None:
        """The client that asks the server. It is made after this, having this in its interceptor."""
        self._client = client

    @property
    def holds(self) -> bool:
        """The server is the identified one."""
        return self._held is not None and _open(self._held)

    async def take(self) -> None:
        """Identify the server that answers now. Raises `NotOurs`, or `Unreachable` when none answers."""
        fresh = await self._dial()
        try:
            await self._identify()
            if not _open(fresh):
                raise Unreachable(f"Temporal at {self._address} ended while it was asked who it is")
        except BaseException:
            os.close(fresh)
            raise
        self._let_go()
        self._held = fresh
        self._taken.set()
        self._taken = asyncio.Event()

    async def require(self, patience_s: float) -> None:
        """Returns at once while the server is the identified one. Raises as `take` does, `Unreachable` only after
        `patience_s`."""
        deadline = time.monotonic() + patience_s
        while not self.holds:
            try:
                async with self._taking:
                    if not self.holds:
                        await self.take()
            except Unreachable as error:
                if isinstance(error, NotOurs) or time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(ASK_PAUSE_S)

    async def held(self) -> None:
        """Returns when the server is the identified one: at once, or when somebody has taken hold again."""
        while not self.holds:
            await self._taken.wait()

    def keep(self, on_foreign: Callable[[NotOurs], None]) -> None:
        """From now on identify the server again whenever it has gone; call `on_foreign` when it is another stack's."""
        self._keeper = asyncio.create_task(self._keep(on_foreign))

    async def _keep(self, on_foreign: Callable[[NotOurs], None]) -> None:
        while True:
            renew_at = time.monotonic() + RENEW_S
            while self.holds and time.monotonic() < renew_at:  # noqa: ASYNC110 - nobody tells of the end
                await asyncio.sleep(LOOK_S)
            try:
                async with self._taking:
                    await self.take()
            except NotOurs as error:
                return on_foreign(error)
            except Unreachable:
                await asyncio.sleep(ASK_PAUSE_S)
            except Exception:  # Without a keeper every activity of this process would wait without end.
                log.exception("Temporal at %s could not be asked who it is, trying again", self._address)
                await asyncio.sleep(LOOK_S)

    def _let_go(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None

    __del__ = _let_go

    async def _dial(self) -> int:
        host, _, port = self._address.rpartition(":")
        try:
            dialled = await asyncio.to_thread(socket.create_connection, (host.strip("[]"), int(port)), ASK_TIMEOUT_S)
        except (OSError, ValueError) as error:
            raise Unreachable(f"Temporal at {self._address} did not answer: {why_silent(error)}") from error
        dialled.setblocking(False)
        return dialled.detach()

    async def _identify(self) -> None:
        assert self._client is not None
        found = await namespace_id(self._client)
        if found != self._expected:
            raise another_stacks("Temporal", self._address, f"namespace {self._namespace!r} is {found}", self._expected)


async def namespace_id(client: Client) -> str:
    """The id that the server gave the client's namespace when it was made. Raises `Unreachable`."""
    try:
        answer = await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=client.namespace), timeout=timedelta(seconds=ASK_TIMEOUT_S)
        )
    except RPCError as error:
        raise Unreachable(f"Temporal did not say whose it is: {why_silent(error)}") from error
    return answer.namespace_info.id


def end_process(error: NotOurs) -> None:
    """What a worker does. At once, as an orderly end would answer tasks that it has been handed: so they run out, and
    the other stack gives them to its own workers."""
    log.error("%s. This process ends, so that it takes no work there", error)
    logging.shutdown()
    os._exit(1)


def _open(held: int) -> bool:
    try:
        while os.read(held, 4096):
            pass  # what the server said by itself
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
