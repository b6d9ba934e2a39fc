"""Which run has the instance, and with which engine. Used by `Host`.

Promise: another run is refused while this one's lease holds; a lease that nobody renews runs out (L11).
"""

import time

from ...schemas.errors import InstanceBusy
from ...schemas.ids import InstanceId, RunId
from ...schemas.messages.rollout import EngineSpec

LEASE_S = 180.0
"""A run that has not asked for anything for so long loses its instance to the next that wants it."""


class Tenancy:
    def __init__(self, instance: InstanceId) -> None:
        self.spec: EngineSpec | None = None
        """Of the tenant's engine; none while the instance is free."""
        self._instance = instance
        self._renewed_at = 0.0

    def begin(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.renew()

    def renew(self) -> None:
        self._renewed_at = time.monotonic()

    def end(self) -> None:
        self.spec = None

    def refuse_others(self, run_id: RunId) -> None:
        """Raises `InstanceBusy` while another run's lease holds."""
        silent = time.monotonic() - self._renewed_at
        if self.spec is not None and self.spec.run_id != run_id and silent < LEASE_S:
            raise InstanceBusy(
                f"{self._instance} serves run {self.spec.run_id}, which asked {silent:.0f} s ago; run {run_id} "
                f"can have it when that run ends, or is silent for {LEASE_S:.0f} s"
            )
