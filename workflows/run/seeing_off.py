"""Groups that have left are seen off: their workflows cancelled, their rows marked, in bounded waves.

Used by `TrainingRun` and its sweep. The list is carried (`Groups.leaving`) and the call idempotent: one that was cut
short is made again, whoever comes first.
"""

import asyncio

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from ...schemas.ids import RunId
    from ...schemas.messages.run import CancelGroups
    from ..calls import settings
    from ..calls import table as calls
    from .groups import Groups


class SeeingOff:
    def __init__(self, run_id: RunId, groups: Groups) -> None:
        self._run_id, self._groups = run_id, groups
        self._one_at_a_time = asyncio.Lock()

    async def all(self) -> None:
        async with self._one_at_a_time:
            while self._groups.leaving:
                reason, groups = next(iter(self._groups.leaving.items()))
                wave = tuple(groups[: settings.DISPATCH_WAVE])
                await calls.cancel_groups(
                    CancelGroups(run_id=self._run_id, groups=wave, reason=reason),
                    summary=f"give up {len(wave)} groups: {reason}",
                )
                self._groups.seen_off(wave, reason)
