"""The orchestrator: hosts every workflow, and the activities that only touch the store or the coordinator.

`python -m psrl.workers.orchestrator`. Holds no state of its own: any number may run, and any may be killed.
"""

import asyncio
from datetime import timedelta

from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from ..activities.orchestration.groups import GroupActivities
from ..activities.orchestration.lookout import LookoutActivities
from ..activities.routing.activities import RoutingActivities
from ..activities.routing.client import CoordinatorClient
from ..activities.routing.contexts import Contexts
from ..activities.sessions.running import RunningSessions
from ..activities.store.activities import StoreActivities
from ..activities.store.connections import async_store
from ..activities.store.migrate import require_current
from ..activities.store.reach import require_reachable
from ..schemas.ids import ORCHESTRATOR_QUEUE
from ..schemas.stack import Stack
from ..workflows.rollout.evaluation import Evaluation
from ..workflows.rollout.group import RolloutGroup
from ..workflows.rollout.instance import RolloutInstance
from ..workflows.run.training_run import TrainingRun
from ..workflows.sessions.session import Session
from ..workflows.training.step import TrainStep
from .process import join, run_worker

WORKFLOWS = (TrainingRun, RolloutGroup, TrainStep, RolloutInstance, Evaluation, Session)

STICKY_TIMEOUT = timedelta(seconds=3)
"""After this orchestrator is killed, a workflow it had cached waits so long before another takes it."""
CACHED_WORKFLOWS = 4000
"""Two buffers of groups stay in memory: an evicted one costs a replay at its next event."""
GRACE = timedelta(seconds=5)
MAX_ACTIVITIES = 200
"""Each instance that waits for a good moment to sync takes one of them meanwhile."""


async def main(stack: Stack, stop: asyncio.Event) -> None:
    client = await join(stack)
    await asyncio.to_thread(require_reachable, stack.postgres_url, store_id=stack.store_id)
    await asyncio.to_thread(require_current, stack.postgres_url)
    store = async_store(stack.postgres_url, store_id=stack.store_id)
    coordinator = CoordinatorClient(stack.coordinator_address, stack.stack_id)
    try:
        routing = RoutingActivities(coordinator, Contexts(store))
        async with orchestrator(client, StoreActivities(store, RunningSessions(client)), routing):
            await stop.wait()
    finally:
        await coordinator.close()
        await store.dispose()


def orchestrator(
    client: Client, store: StoreActivities, routing: RoutingActivities, cached_workflows: int = CACHED_WORKFLOWS
) -> Worker:
    """The worker; also what integration tests run in their own process. With no cached workflow every task is a
    replay."""
    groups, lookout = GroupActivities(client, store.mark_groups, routing.place), LookoutActivities(client)
    return Worker(
        client,
        task_queue=ORCHESTRATOR_QUEUE,
        workflows=list(WORKFLOWS),
        activities=[
            groups.start_groups,
            groups.cancel_groups,
            groups.tell_run,
            lookout.collect_reports,
            lookout.look_at_run,
            store.make_batch,
            store.record_step,
            store.record_evaluation,
            store.record_run,
            store.record_session,
            store.reopen_run,
            routing.route,
            routing.plan_dispatch,
            routing.sync_due,
        ],
        # Workflow modules import nothing but schemas and pure logic (a test holds that), and tests run them sandboxed:
        # here the sandbox would only cost 12 ms per workflow start.
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_cached_workflows=cached_workflows,
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
        graceful_shutdown_timeout=GRACE,
        max_concurrent_workflow_tasks=200,
        max_concurrent_activities=MAX_ACTIVITIES,
        max_concurrent_local_activities=200,
    )


if __name__ == "__main__":
    run_worker(main)
