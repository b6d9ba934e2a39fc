"""When is a part up? Each check answers why not, or nothing when the part is up."""

import asyncio
import datetime
import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.request import urlopen

import psutil
import psycopg
from sqlalchemy.engine import make_url
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError

from ...activities.store import identity
from ...schemas.errors import PsrlError, another_stacks
from ...schemas.silence import why_silent
from ...schemas.stack import Stack
from ..coordinator.client import CoordinatorClient
from .parts import Worker

Check = Callable[[], Awaitable[str]]
"""An empty answer means ready."""

CALL_TIMEOUT_S = 5


async def postgres(url: str, database: str | None = None) -> str:
    """Accepts connections of our user."""
    try:
        connection = await psycopg.AsyncConnection.connect(_conninfo(url, database), connect_timeout=CALL_TIMEOUT_S)
    except psycopg.OperationalError as error:
        return why_silent(error)
    await connection.close()
    return ""


async def ensure_database(url: str, name: str) -> None:
    """Create the database on our own server."""
    async with await psycopg.AsyncConnection.connect(_conninfo(url, "postgres"), autocommit=True) as connection:
        found = await connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
        if await found.fetchone() is None:
            await connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))


async def store_id(url: str) -> str:
    """Of the database that answers; empty when it has no tables of ours."""
    return await asyncio.to_thread(_store_id, url)


def _store_id(url: str) -> str:
    with psycopg.connect(_conninfo(url, None), connect_timeout=CALL_TIMEOUT_S) as connection:
        return identity.store_id(connection)


def listens(pid: int, port: int) -> bool:
    """The process has the port. True also where the system does not let us look."""
    try:
        found = psutil.Process(pid).net_connections(kind="tcp")
    except psutil.AccessDenied:
        return True
    except psutil.Error:  # it has ended
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in found)


async def temporal(address: str, namespace: str) -> str:
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            client = await Client.connect(address, namespace=namespace, data_converter=pydantic_data_converter)
            await client.count_workflows()  # the namespace answers a little later than the port
    except (RuntimeError, ValueError, RPCError, TimeoutError) as error:
        return why_silent(error)
    return ""


async def coordinator(stack: Stack) -> str:
    async with CoordinatorClient(stack.coordinator_address, stack.stack_id) as client:
        try:
            await client.fleet()
        except PsrlError as error:
            return str(error)
    return ""


async def gateway(stack: Stack) -> str:
    """Answers, and is ours."""
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            answer = await asyncio.to_thread(_health, stack.gateway_address)
    except (OSError, ValueError, TimeoutError) as error:
        return f"gateway at {stack.gateway_address} did not answer: {why_silent(error)}"
    if answer.get("stack_id") != stack.stack_id:
        return str(another_stacks("gateway", stack.gateway_address, str(answer.get("stack_id")), stack.stack_id))
    return ""


def _health(address: str) -> dict[str, Any]:
    with urlopen(f"http://{address}/healthz", timeout=CALL_TIMEOUT_S) as answer:
        found = json.load(answer)
    return found if isinstance(found, dict) else {}


async def polls(client: Client, worker: Worker, since: float) -> str:
    """Somebody has polled the worker's queue since it was started. Pollers of a killed worker stay listed for minutes,
    hence the time."""
    kind = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW if worker.polls_workflows else TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
    try:
        answer = await client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=client.namespace, task_queue=TaskQueue(name=worker.queue), task_queue_type=kind
            ),
            timeout=datetime.timedelta(seconds=CALL_TIMEOUT_S),
        )
    except RPCError as error:
        return f"Temporal could not describe queue {worker.queue}: {why_silent(error)}"
    if any(poller.last_access_time.ToMicroseconds() / 1e6 >= since for poller in answer.pollers):
        return ""
    return f"no worker polls queue {worker.queue} yet"


def _conninfo(url: str, database: str | None) -> str:
    parsed = make_url(url).set(drivername="postgresql")
    if database is not None:
        parsed = parsed.set(database=database)
    return parsed.render_as_string(hide_password=False)
