"""`psrl train`: check the configuration, see that the stack is up, start the run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from ...schemas.config import RunConfig, merge_with_places, parse_config
from ...schemas.errors import ConfigError, RunExists
from ...schemas.ids import ORCHESTRATOR_QUEUE, RUN_ID_PATTERN, RUN_ID_RULE
from ...schemas.messages.run import RunResult, StartRun
from ...schemas.stack import Stack, described_by_environment, load_stack
from ..stack.parts import KINDS
from ..stack.settings import Settings, UpRequest, load_settings
from ..stack.supervision import Supervisor
from ..stack.up import up
from .paths import make_absolute
from .resume import in_store, until_ended
from .runs import ENDED, ENDING, RPC_TIMEOUT, RUN_TYPE, living


def read_config(file: Path, overrides: Sequence[str]) -> tuple[dict[str, Any], RunConfig]:
    """The mapping as written, paths absolute, and its checked form. Raises `ConfigError`."""
    values, places = merge_with_places(file, overrides)
    parse_config(values, places)
    make_absolute(values)
    return values, parse_config(values)


async def ready_stack(config: RunConfig, home: Path, start: bool, say: Callable[[str], None]) -> Stack:
    """The stack, started if need be. Raises `ConfigError` when it has fewer instances than the run wants."""
    wanted = config.psrl.deployment.n_rollout_instances
    if not start or described_by_environment():
        stack = load_stack(home)
    else:
        fresh = not Supervisor(home).answers()
        if fresh:
            say("starting the stack …")
        before = load_settings(home)
        grow = fresh and (before is None or before.instances < wanted)
        request = UpRequest(
            home=home,
            cwd=Path.cwd(),
            instances=wanted if grow else None,
            parts=KINDS if fresh else None,
            start_timeout_s=config.psrl.deployment.start_timeout_s,
        )
        stack = await up(request, say if fresh else lambda _: None)
        if before is not None and not fresh:
            _note(before, say)
    if wanted > len(stack.instances):
        raise ConfigError(
            f"psrl.deployment.n_rollout_instances={wanted}, but the stack under {home} has {len(stack.instances)}; "
            f"allowed: up to that, or `psrl down` and `psrl up --instances {wanted}`"
        )
    return stack


def _note(running: Settings, say: Callable[[str], None]) -> None:
    """What may surprise about a stack that somebody started in another way."""
    if running.cwd != Path.cwd():
        say(f"note: the running stack imports reward functions from {running.cwd}, where it was started")
    if missing := [kind for kind in KINDS if kind not in running.parts]:
        say(f"note: the running stack lacks {', '.join(missing)}; the run waits until they are started")


async def start_run(
    client: Client, stack: Stack, name: str, values: dict[str, Any], config: RunConfig
) -> WorkflowHandle[Any, RunResult]:
    """Raises `RunExists` when the name is taken. A run that failed before it was admitted may be started again."""
    if await _taken(client, stack, name):
        raise RunExists(await _why_taken(client, name))
    psrl = config.psrl
    summary = (
        f"eta {psrl.staleness}, {psrl.staleness_buffer_entries} groups of {psrl.rollout_n}, "
        f"{Path(config.model.path).name}, {config.reward.described}"
    )
    try:
        return await client.start_workflow(
            RUN_TYPE,
            StartRun(config=values),
            id=name,
            task_queue=ORCHESTRATOR_QUEUE,
            result_type=RunResult,
            static_summary=summary[:200],
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
            rpc_timeout=RPC_TIMEOUT,
        )
    except WorkflowAlreadyStartedError as error:
        raise RunExists(f"Temporal knows a run {name!r} already: choose another name with --run") from error


def checked_name(name: str) -> str:
    if not RUN_ID_PATTERN.fullmatch(name):
        raise ConfigError(f"--run={name!r} is not a valid run id; allowed: {RUN_ID_RULE}")
    return name


async def free_name(client: Client, stack: Stack, stem: str) -> str:
    """`stem`, else `stem-2`, `stem-3` …: the first that no run has."""
    base = base_name(stem)
    number = 1
    while True:
        name = base if number == 1 else f"{base}-{number}"
        if not await _taken(client, stack, name):
            return name
        number += 1


def base_name(stem: str) -> str:
    base = stem[:90]  # a number comes after it
    if not RUN_ID_PATTERN.fullmatch(base):
        raise ConfigError(
            f"the file's name {stem!r} is not a valid run id: name the run with --run; allowed: {RUN_ID_RULE}"
        )
    return base


async def _taken(client: Client, stack: Stack, name: str) -> bool:
    if in_store(stack, name):
        return True
    status = await living(client, name)
    if status is not None and status.phase in ENDED:
        await until_ended(client, name, lambda _: None)  # its last words
        status = await living(client, name)
    # A run that failed before its row was written used nothing: its name is free again.
    return status is not None


async def _why_taken(client: Client, name: str) -> str:
    status = await living(client, name)
    if status is not None and status.phase in ENDING:
        return (
            f"run {name!r} is still ending: `psrl resume {name}` waits for its end and resumes it; for a new run "
            "choose another name with --run"
        )
    return f"run {name!r} exists already: choose another name with --run, or see `psrl report {name}`"
