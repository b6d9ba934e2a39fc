"""A workflow that stands in for a run and keeps the signals it gets."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from psrl.schemas.messages.run import InstanceChanged


@workflow.defn
class SignalSink:
    def __init__(self) -> None:
        self._changes: list[InstanceChanged] = []

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.signal
    def instance_changed(self, changed: InstanceChanged) -> None:
        self._changes.append(changed)

    @workflow.query
    def changes(self) -> list[InstanceChanged]:
        return self._changes
