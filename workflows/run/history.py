"""How long the history of the run's execution has become. Used by `TrainingRun` to decide when it continues as new.

It does so after every buffer, and in mid-buffer or while paused as soon as the server suggests it. While a step runs it
cannot: the step is its child. A step is bounded, but what happens beside it need not be, so from some length on nothing
more is started until the step has ended.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from ..calls import settings


class History:
    def __init__(self) -> None:
        self._suggested_at = 0

    @property
    def long(self) -> bool:
        """The server suggests to begin a new one."""
        suggested = workflow.info().is_continue_as_new_suggested()
        if suggested and not self._suggested_at:
            self._suggested_at = workflow.info().get_current_history_length()
        return suggested

    @property
    def exhausted(self) -> bool:
        """Much more, and the server would terminate the run."""
        return self.long and workflow.info().get_current_history_length() > settings.HISTORY_ROOM * self._suggested_at
