"""Which exceptions end a workflow, the same for all: `@workflow.defn(failure_exception_types=FAILS)`.

Promise: nothing that goes wrong in a workflow's own code is repeated forever (L11). Temporal would repeat the task
until the code changes; meanwhile the workflow neither acts nor answers. One that has failed is noticed by who waits for
it, says why, and is started anew or resumed from the store. What says nothing about the workflow (a task that took too
long, a lost connection) is raised outside its code and still repeats the task.
"""

from typing import Final

FAILS: Final[tuple[type[Exception], ...]] = (Exception,)
"""Every one, not only `PsrlError`: a `KeyError` is a broken invariant that nobody foresaw. It includes Temporal's own
`NondeterminismError`, of a history that other code has written."""
