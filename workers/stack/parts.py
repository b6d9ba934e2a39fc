"""The parts of a stack: their names, their commands, and the environment they run in."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from ...schemas.environment import HOME_VARIABLE
from ...schemas.errors import UserError, nearest
from ...schemas.ids import CPU_QUEUE, ORCHESTRATOR_QUEUE, TRAINER_QUEUE, InstanceId, rollout_queue

POSTGRES, TEMPORAL, COORDINATOR, GATEWAY = "postgres", "temporal", "coordinator", "gateway"
ORCHESTRATOR, CPU, ROLLOUT, TRAINER = "orchestrator", "cpu", "rollout", "trainer"
KINDS = (POSTGRES, TEMPORAL, COORDINATOR, GATEWAY, ORCHESTRATOR, CPU, ROLLOUT, TRAINER)
"""In the order in which they start. `rollout` stands for all instances."""

WORKER_DEFAULTS = {
    "OMP_NUM_THREADS": "1",  # two OpenMP threads next to any other busy process run 10 to 25 times slower
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "PYTHONUNBUFFERED": "1",
}
TEMPORAL_DEFAULTS = {
    "GOGC": "400",  # the server's live memory is small and its garbage much: collecting it late saves a tenth
    "GOMEMLIMIT": "2GiB",  # above this it collects as often as it must
}
"""What a user has set in the environment wins, over both."""


@dataclass(frozen=True)
class Worker:
    """One process of ours that polls a task queue."""

    name: str
    command: tuple[str, ...]
    queue: str
    polls_workflows: bool = False


def instance_ids(count: int) -> tuple[InstanceId, ...]:
    return tuple(InstanceId(f"rollout-{number}") for number in range(count))


def parse_parts(text: str) -> tuple[str, ...]:
    """`postgres,temporal` in start order. Raises `UserError` for a name that is no part."""
    named = [part.strip() for part in text.split(",") if part.strip()]
    for part in named:
        if part not in KINDS:
            raise UserError(f"--parts: unknown part {part!r}{nearest(part, KINDS)}; allowed: {', '.join(KINDS)}")
    if not named:
        raise UserError(f"--parts is empty; allowed: {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if kind in named)


def workers(parts: tuple[str, ...], instances: tuple[InstanceId, ...]) -> list[Worker]:
    """The queue-polling processes of `parts`."""
    found = []
    if ORCHESTRATOR in parts:
        found.append(Worker(ORCHESTRATOR, _module("orchestrator"), ORCHESTRATOR_QUEUE, polls_workflows=True))
    if CPU in parts:
        found.append(Worker(CPU, _module("cpu"), CPU_QUEUE))
    if ROLLOUT in parts:
        found += [Worker(name, _module("rollout.main", "--instance", name), rollout_queue(name)) for name in instances]
    if TRAINER in parts:
        found.append(Worker(TRAINER, _module("trainer.main"), TRAINER_QUEUE))
    return found


def coordinator_command() -> tuple[str, ...]:
    return _module("coordinator.main")


def gateway_command() -> tuple[str, ...]:
    return _module("gateway")


def environment(home: Path, cwd: Path) -> dict[str, str]:
    """What every part sees. The user's directory is importable, so that a reward beside the configuration is found."""
    inherited = dict(os.environ)
    paths = [str(cwd), *filter(None, [inherited.get("PYTHONPATH")])]
    defaults = WORKER_DEFAULTS | TEMPORAL_DEFAULTS
    if not Path("/dev/nvidiactl").exists():
        defaults["TORCHDYNAMO_DISABLE"] = "1"  # on a CPU it only costs a compiler run per shape
    return {**defaults, **inherited, HOME_VARIABLE: str(home), "PYTHONPATH": os.pathsep.join(paths)}


def dies_with_supervisor(command: tuple[str, ...], signal_name: str = "TERM") -> tuple[str, ...]:
    """The command, ended by the kernel when its parent is killed. Without `setpriv` (not Linux) it is left as it is:
    the next start finds and ends what stayed behind."""
    setpriv = shutil.which("setpriv")
    return (setpriv, "--pdeathsig", signal_name, "--", *command) if setpriv else command


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"psrl.workers.{name}", *arguments)
