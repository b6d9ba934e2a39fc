"""Timeouts and retry policies of every activity call, in one place.

Two clocks matter: a heartbeat timeout says how soon a dead process is noticed (seconds), a schedule-to-close timeout
says how long the caller is willing to wait in all (L11: every wait has an owner that can time out).
"""

from datetime import timedelta

from temporalio.common import RetryPolicy

from ...schemas.errors import StorageFull

SHORT = timedelta(seconds=10)
"""Start-to-close of activities that make one database or coordinator call."""
BATCH = timedelta(minutes=5)
"""Recording a batch of any size."""
STORE_PATIENCE = timedelta(minutes=30)
"""How long a run waits for PostgreSQL to come back before it fails."""
HEARTBEAT = timedelta(seconds=10)
"""A process that missed heartbeats for so long is taken for dead."""
TRAIN_HEARTBEAT = timedelta(seconds=20)
"""Of processes in which the user's code or a large computation may hold the interpreter for a while."""
TRAIN_PATIENCE = timedelta(hours=12)
"""One trainer stage, restarts of the trainer included."""
HELD_PATIENCE = timedelta(hours=48)
"""How long a trainer stage waits for room on a full disk, or for the end of another run: over a weekend's nights,
and within one workflow's history."""
HELD_PAUSE = timedelta(seconds=10)
HELD_PAUSE_MAX = timedelta(seconds=60)
"""Between two looks at what holds a stage: the first in the first minute, the second from then on."""
WEIGHTS_PATIENCE = timedelta(minutes=30)
ADMISSION = timedelta(minutes=30)
"""Reading and tokenising a large data set."""
LEASE = timedelta(seconds=60)
"""How often an instance makes sure that its run still exists."""
SWEEP = timedelta(seconds=60)
"""How often a run looks after the workflows it waits on."""
UNDERWAY = timedelta(seconds=5)
"""A group this young is not looked after yet."""
SWEEPS_SAVED = 2
"""While a step runs in a history that has no room left, only every so many-th sweep is made."""
HISTORY_ROOM = 4
"""A history that the server would have begun anew may become so many times as long while a step runs. By default the
server suggests it at 4,096 events or 4 MB and terminates the run at 51,200 or 50 MB."""
ABSENCE = 3 * SWEEP
"""A run that nobody ran for so long was left alone: its stack was down."""
POLL_START = timedelta(seconds=20)
"""A host that does not pick up a task within this time is gone: the trajectory is routed elsewhere."""

QUICK = RetryPolicy(
    initial_interval=timedelta(milliseconds=200), backoff_coefficient=2, maximum_interval=timedelta(seconds=5)
)
"""Idempotent calls that are repeated until their schedule-to-close timeout."""
LOCAL = RetryPolicy(
    initial_interval=QUICK.initial_interval,
    backoff_coefficient=QUICK.backoff_coefficient,
    maximum_interval=QUICK.maximum_interval,
    maximum_attempts=6,
)
"""Local activities, for some seconds: between their attempts the SDK heeds no schedule-to-close timeout, and without a
number of attempts they are repeated forever."""
STAGE = RetryPolicy(
    initial_interval=QUICK.initial_interval,
    backoff_coefficient=QUICK.backoff_coefficient,
    maximum_interval=QUICK.maximum_interval,
    non_retryable_error_types=[StorageFull.__name__],
)
"""Trainer stages: as the above, but the workflow itself looks after a full disk, so that people hear of it."""
ONCE = RetryPolicy(maximum_attempts=1)
"""The workflow itself decides what a failure means (generation is routed anew, not repeated on a dead host)."""
ADMIT_ATTEMPTS = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=5)
SCORE_ATTEMPTS = RetryPolicy(
    initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10), maximum_attempts=20
)
"""Of a scoring task or an agent's run as a whole, so that a worker may die repeatedly under it; the reward's own
attempts are counted inside the first, the agent's by its group."""
PULL_ATTEMPTS = RetryPolicy(
    initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=10), maximum_attempts=10
)

DISPATCH_WAVE = 32
"""Groups started by one activity call: bounded waves keep the server responsive."""
DISPATCH_RETRY_S = 1.0
"""First pause before the coordinator is asked again when no instance has room; doubles up to the next number."""
DISPATCH_RETRY_MAX_S = 8.0
ROUTE_RETRY_S = 1.0
"""Pause before room is asked for again."""
RESTART_PAUSE_MAX_S = 30.0
"""Between two starts of an engine; doubles from 2 s up to this number."""
PROBE_PAUSE_S = 30.0
"""Before a quarantined engine is tried for the first time; doubles up to the next number."""
PROBE_PAUSE_MAX_S = 600.0
BUSY_RETRY_S = 5.0
"""Pause before an instance that another run holds is asked for again."""
