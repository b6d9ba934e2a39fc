"""The guard before every task and every call: none passes while the server is not known to be our own (`identity.py`).

An activity waits until the server has been identified again. A workflow that is new to this process cannot wait, so its
task is refused, and the server repeats it; one that is cached here has been identified by its id.
"""

from typing import Any

from temporalio.client import (
    CancelWorkflowInput,
    DescribeWorkflowInput,
    OutboundInterceptor,
    QueryWorkflowInput,
    SignalWorkflowInput,
    StartWorkflowInput,
    StartWorkflowUpdateInput,
    StartWorkflowUpdateWithStartInput,
    TerminateWorkflowInput,
    WorkflowExecutionDescription,
    WorkflowHandle,
    WorkflowUpdateHandle,
)
from temporalio.client import Interceptor as ClientInterceptor
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)
from temporalio.worker import Interceptor as WorkerInterceptor

from ..schemas.errors import NotOurs, Unreachable
from .identity import ASK_TIMEOUT_S, Hold


class Guard(ClientInterceptor, WorkerInterceptor):
    """Given to the client; the workers that use the client have it too."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _Calls(next, self._hold)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Activities(next, self._hold)

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        hold = self._hold

        class Known(WorkflowInboundInterceptor):
            def __init__(self, next: WorkflowInboundInterceptor) -> None:
                if not hold.holds:
                    raise Unreachable("the server must be identified before this workflow is begun here")
                super().__init__(next)

        return Known


class _Activities(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, hold: Hold) -> None:
        super().__init__(next)
        self._hold = hold

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        await self._hold.held()
        return await super().execute_activity(input)


class _Calls(OutboundInterceptor):
    """What starts, changes or reads a workflow."""

    def __init__(self, next: OutboundInterceptor, hold: Hold) -> None:
        super().__init__(next)
        self._hold = hold

    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
        await self._ours()
        return await super().start_workflow(input)

    async def cancel_workflow(self, input: CancelWorkflowInput) -> None:
        await self._ours()
        await super().cancel_workflow(input)

    async def describe_workflow(self, input: DescribeWorkflowInput) -> WorkflowExecutionDescription:
        await self._ours()
        return await super().describe_workflow(input)

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        await self._ours()
        return await super().query_workflow(input)

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:
        await self._ours()
        await super().signal_workflow(input)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:
        await self._ours()
        return await super().start_workflow_update(input)

    async def start_update_with_start_workflow(
        self, input: StartWorkflowUpdateWithStartInput
    ) -> WorkflowUpdateHandle[Any]:
        await self._ours()
        return await super().start_update_with_start_workflow(input)

    async def terminate_workflow(self, input: TerminateWorkflowInput) -> None:
        await self._ours()
        await super().terminate_workflow(input)

    async def _ours(self) -> None:
        """As the call itself would, fail with Temporal's own error when nobody answers."""
        try:
            await self._hold.require(ASK_TIMEOUT_S)
        except Unreachable as error:
            if isinstance(error, NotOurs):
                raise
            raise RPCError(str(error), RPCStatusCode.UNAVAILABLE, b"") from error
