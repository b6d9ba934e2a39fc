"""The CPU worker: hosts the data, reward and environment activities and those that run agents, which may import and run
the user's code.

`python -m psrl.workers.cpu`, with the working directory in which import paths are to be found. Any number may run, and
any may be killed: what it holds are loaded data sets, and environments between their steps, which another makes anew.
"""

import asyncio
import faulthandler
from datetime import timedelta
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client
from temporalio.worker import Worker

from ..activities.agents.activity import Agents
from ..activities.data.admit import Admit
from ..activities.data.dataset import DatasetCache
from ..activities.data.draw import Draw
from ..activities.data.restore import Restore
from ..activities.environments.step import Environments
from ..activities.rewards.score import Rewards
from ..activities.sessions.running import RunningSessions
from ..activities.store.connections import async_store
from ..activities.store.migrate import require_current
from ..activities.store.reach import require_reachable
from ..schemas.ids import AGENT_QUEUE, CPU_QUEUE, environments_queue
from ..schemas.stack import Stack
from .process import join, run_worker

MAX_ACTIVITIES = 128
"""Scoring tasks at the same time; calls of the function itself are limited by reward.max_concurrency."""
MAX_AGENTS = 256
"""Of all runs; psrl.agentic_rl.max_concurrent_agents is the limit of one, and the others wait in here."""
GRACE = timedelta(seconds=5)
WATCHDOG_S = 60.0
"""A reward that holds the interpreter lock (a runaway regular expression does) freezes this whole process, and no
Python code of ours can help. The watchdog thread needs no lock: it prints all stacks and ends the process, so that its
supervisor starts another and Temporal gives the tasks to it."""
WATCHDOG_REARM_S = 5.0


async def main(stack: Stack, stop: asyncio.Event) -> None:
    await asyncio.to_thread(require_reachable, stack.postgres_url, store_id=stack.store_id)
    await asyncio.to_thread(require_current, stack.postgres_url)
    client = await join(stack)
    store = async_store(stack.postgres_url, store_id=stack.store_id)
    rewards = Rewards(store)
    queue = environments_queue(uuid4().hex[:8])
    environments = Environments(store, queue)
    watchdog = asyncio.create_task(_watchdog())
    try:
        async with (
            cpu_worker(
                client,
                store,
                len(stack.instances),
                rewards,
                environments=environments,
                gateway=stack.gateway_address,
            ),
            environment_worker(client, queue, environments),
            agent_worker(client, store, stack),
        ):
            await stop.wait()
    finally:
        await environments.end()
        rewards.close()
        watchdog.cancel()
        faulthandler.cancel_dump_traceback_later()
        await store.dispose()


def cpu_worker(
    client: Client,
    store: AsyncEngine,
    instances: int | None,
    rewards: Rewards | None = None,
    *,
    environments: Environments | None = None,
    gateway: str | None = None,
) -> Worker:
    """The worker; also what integration tests run in their own process."""
    datasets = DatasetCache()
    draw = Draw(store, datasets)
    return Worker(
        client,
        task_queue=CPU_QUEUE,
        activities=[
            Admit(store, datasets, instances, gateway).admit_run,
            Restore(store, datasets, instances, gateway).restore_run,
            draw.draw_groups,
            draw.draw_validation,
            (rewards or Rewards(store)).score,
            (environments or Environments(store, queue="")).step_environment,
        ],
        max_concurrent_activities=MAX_ACTIVITIES,
        graceful_shutdown_timeout=GRACE,
    )


def agent_worker(client: Client, store: AsyncEngine, stack: Stack) -> Worker:
    """Beside the other, so that agents, which take minutes, leave it room."""
    agents = Agents(
        store,
        RunningSessions(client),
        gateway=stack.gateway_address,
        stack_id=stack.stack_id,
        home=stack.home,
    )
    return Worker(
        client,
        task_queue=AGENT_QUEUE,
        activities=[agents.run_agent],
        max_concurrent_activities=MAX_AGENTS,
        graceful_shutdown_timeout=GRACE,
    )


def environment_worker(client: Client, queue: str, environments: Environments) -> Worker:
    """For the steps of environments that this process keeps."""
    return Worker(
        client,
        task_queue=queue,
        activities=[environments.step_environment, environments.close_environments],
        max_concurrent_activities=MAX_ACTIVITIES,
        graceful_shutdown_timeout=GRACE,
    )


async def _watchdog() -> None:
    while True:
        faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
        await asyncio.sleep(WATCHDOG_REARM_S)


if __name__ == "__main__":
    run_worker(main)
