"""`python -m tests.chaos.process KIND ARGUMENT…`: a production process in which the named points end it when armed.

Imports the production modules, replaces functions at the points by ones that pass `trip` and then do the same, and runs
the production main. A point whose function is not found is an error: the code moved, and the point must move with it.
"""

import functools
import inspect
import os
import runpy
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from temporalio import activity

from psrl.schemas.stack import stack_home

from .triggers import PART_VARIABLE, folder, trip

MODULES = {
    "orchestrator": "psrl.workers.orchestrator",
    "cpu": "psrl.workers.cpu",
    "coordinator": "psrl.workers.coordinator.main",
    "rollout": "psrl.workers.rollout.main",
    "trainer": "psrl.workers.trainer.main",
    "gateway": "psrl.workers.gateway.__main__",
}

Condition = Callable[..., bool]


def around(
    where: str, *, before: str = "", after: str = "", when: Condition | None = None, then: Condition | None = None
) -> None:
    """Trip at the entry or at the return of `package.module:Class.function`. `when` looks at the arguments, `then` at
    the result."""
    module, _, path = where.partition(":")
    *outer, name = path.split(".")
    owner = functools.reduce(getattr, outer, import_module(module))
    original = getattr(owner, name)

    def enter(arguments: tuple[Any, ...]) -> None:
        if before and (when is None or when(*arguments)):
            trip(before)

    def leave(arguments: tuple[Any, ...], result: Any) -> None:
        if after and (when is None or when(*arguments)) and (then is None or then(result)):
            trip(after)

    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            enter(args)
            result = await original(*args, **kwargs)
            leave(args, result)
            return result

    else:

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            enter(args)
            result = original(*args, **kwargs)
            leave(args, result)
            return result

    setattr(owner, name, wrapped)


def orchestrator() -> None:
    around("psrl.activities.orchestration.groups:GroupActivities._start", after="between-starts")
    around("psrl.activities.orchestration.groups:GroupActivities.start_groups", before="before-start")
    around("psrl.workflows.rollout.group:RolloutGroup._tell_run", before="before-report", after="after-report")
    around("psrl.activities.store.activities:record_batch", before="before-batch", after="after-batch")
    around("psrl.activities.store.activities:store_step", before="before-record")
    around("psrl.workflows.run.training_run:TrainingRun._roll_over", before="before-roll-over")
    around("psrl.workflows.sessions.session:Session._play", before="turn-accepted", after="turn-played")
    around("psrl.workflows.sessions.session:Session._drain", before="session-closing")


def cpu() -> None:
    around("psrl.activities.data.draw:Draw.draw_groups", before="after-reserve", after="after-draw")
    around("psrl.activities.rewards.score:Rewards.score", after="after-score")
    around("psrl.activities.agents.activity:Agents._open", after="session-opened")
    around("psrl.activities.agents.activity:Agents._run", after="agent-ended")
    around("psrl.activities.agents.activity:end_episode", after="episode-ended")


def gateway() -> None:
    around("psrl.workers.gateway.turns:Turns._place", after="turn-placed")
    around("psrl.workers.gateway.turns:Turns._sample", after="turn-sampled")


def coordinator() -> None:
    """No point: what it knows may be lost at any time."""


def rollout() -> None:
    _log_sampled_tokens()
    around("psrl.activities.generation.writer:SegmentWriter.write", before="before-write", after="after-write")
    around(
        "psrl.workers.rollout.generate:Generator.generate",
        after="before-completion",
        then=lambda result: bool(result.end != "interrupted"),
    )
    around("psrl.workers.rollout.source:PublishedWeights.lease", before="before-pull", after="mid-pull")


def trainer() -> None:
    module = "psrl.workers.trainer.checkpoint"
    around("psrl.workers.trainer.step:_optimizer_step", after="mid-update")
    around("psrl.activities.weights.file:_write_shard", after="mid-weight-write")
    around("psrl.workers.trainer.publisher:publish_version", before="before-publish")
    around("psrl.workers.trainer.publisher:Publisher.publish", after="after-publish")
    around("transformers:PreTrainedModel.save_pretrained", before="checkpoint-begin")
    around("transformers:PreTrainedTokenizerBase.save_pretrained", before="checkpoint-model")
    around(f"{module}:_fingerprint", before="checkpoint-state", when=lambda file: _in_temporary(file.parent))
    around(f"{module}:_flush", after="checkpoint-flush", when=lambda path: _in_temporary(path.parent))
    around(f"{module}:_flush", after="checkpoint-rename", when=_in_temporary)
    around(f"{module}:_flush", before="checkpoint-renamed", when=lambda path: not _in_temporary(path, path.parent))
    around("psrl.workers.trainer.checkpoints:Checkpoints._record", before="checkpoint-row")
    _mid_prune()


def _in_temporary(*paths: Path) -> bool:
    return any(path.name.startswith(".tmp-") for path in paths)


def _mid_prune() -> None:
    """An old checkpoint's marker is removed first, then its folder."""
    module = import_module("psrl.workers.trainer.checkpoint")
    shutil, rmtree = module.shutil, module.shutil.rmtree

    def removing(path: Path, *args: Any, **kwargs: Any) -> None:
        if Path(path).name.startswith("step_"):
            trip("checkpoint-prune")
        rmtree(path, *args, **kwargs)

    shutil.rmtree = removing


def _log_sampled_tokens() -> None:
    """One line per chunk that reached the host: what was sampled, whether or not it is stored later."""
    from psrl.workers.rollout.generate import Progress

    place = folder(stack_home()) / "sampled"
    place.mkdir(parents=True, exist_ok=True)
    log = (place / f"{os.environ.get(PART_VARIABLE, 'rollout')}-{os.getpid()}").open("a", buffering=1)
    add = Progress.add

    def adding(self: Progress, chunk: Any) -> None:
        first = self.stored + len(self.ids)
        add(self, chunk)
        if chunk.token_ids:
            played_by = str(activity.info().workflow_id).rpartition("/")[2]
            turn = f"{played_by}/{self.request.trajectory.index}.{self.request.turn}"
            log.write(f"{time.time():.3f} {turn} {self.fence} {first} {len(chunk.token_ids)}\n")
            if chunk.end is None:
                trip("mid-generation")

    Progress.add = adding  # type: ignore[method-assign]


def main() -> None:
    kind, module = sys.argv[1], MODULES[sys.argv[1]]
    of_kind = (orchestrator, cpu, coordinator, rollout, trainer, gateway)
    {prepare.__name__: prepare for prepare in of_kind}[kind]()
    sys.argv = [module, *sys.argv[2:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
