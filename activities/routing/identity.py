"""How a call to the coordinator says whose it is, and how another stack's coordinator refuses it (L14)."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

STACK_KEY = "psrl-stack"
"""gRPC metadata of every call: the caller's stack."""
REFUSED = grpc.StatusCode.PERMISSION_DENIED
"""Its details are the id of the stack that the coordinator belongs to."""


class OnlyOurs(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses the calls of other stacks. A call that does not say whose it is, is served."""

    def __init__(self, stack_id: str) -> None:
        self._stack_id = stack_id
        self._refusal = grpc.unary_unary_rpc_method_handler(self._refuse)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        caller = dict(details.invocation_metadata).get(STACK_KEY)
        return await continuation(details) if caller in {None, self._stack_id} else self._refusal

    async def _refuse(self, request: Any, context: Any) -> None:
        await context.abort(REFUSED, self._stack_id)
