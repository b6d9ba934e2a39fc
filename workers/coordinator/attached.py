"""The hosts that are attached, and the commands on their way to them.

Promise: a command goes to the newest stream of its instance, or nowhere; what a stream had not taken when it ended is
lost with it.
"""

import asyncio

from ...schemas.ids import InstanceId
from ...schemas.messages.coordination import HostCommand

Outbox = asyncio.Queue[HostCommand | None]
"""`None`: the stream has ended."""


class Attached:
    def __init__(self) -> None:
        self._outboxes: dict[InstanceId, Outbox] = {}

    def take(self, instance: InstanceId, outbox: Outbox) -> None:
        """Commands for the instance go here from now on."""
        self._outboxes[instance] = outbox

    def leave(self, outbox: Outbox) -> None:
        for name in [name for name, current in self._outboxes.items() if current is outbox]:
            del self._outboxes[name]

    def send(self, instance: InstanceId, command: HostCommand) -> bool:
        """Whether its host is attached."""
        outbox = self._outboxes.get(instance)
        if outbox is not None:
            outbox.put_nowait(command)
        return outbox is not None
