"""Admission: all that can be known to be wrong with a run is refused here, before any part works for it (L13)."""

import asyncio
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from temporalio import activity

from ...schemas.config import RunConfig, parse_config
from ...schemas.config.sync_and_mig import SyncMode
from ...schemas.cost_model import layout, read_cost_model
from ...schemas.errors import ConfigError, DataError, RunExists
from ...schemas.ids import RUN_ID_PATTERN, RUN_ID_RULE
from ...schemas.messages.data import Admission, AdmitRequest
from ...schemas.messages.run import RunPhase
from ...schemas.tables import Run
from ..agents.admit import check_agents
from ..boundary import boundary
from ..environments.load import Tools, check_environment, environment_notes
from ..filters.registry import check_filter
from ..heartbeat import heartbeating
from ..rewards.load import Loaded, check_rewards, check_rows
from .dataset import Dataset, DatasetCache
from .model_dir import check_model


class Parts(NamedTuple):
    rewards: tuple[Loaded, ...]
    tools: Tools
    """What the policy may call; asked for once, since that may start the programs that offer them."""


class Checked(NamedTuple):
    config: RunConfig
    dataset: Dataset
    total_steps: int
    rewards: tuple[Loaded, ...]
    environment: tuple[str, ...]
    """What is to be told of it."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know although nothing is wrong."""
        of_rewards = (note for one in self.rewards for note in one.notes)
        return (*self.dataset.notes, *of_rewards, *self.environment)


class Admit:
    """`instances` is how many rollout instances the stack has, `gateway` the address of its gateway; null leaves either
    unchecked."""

    def __init__(
        self, store: AsyncEngine, datasets: DatasetCache, instances: int | None, gateway: str | None = None
    ) -> None:
        self._store = store
        self._datasets = datasets
        self._instances, self._gateway = instances, gateway

    @activity.defn(name="admit_run")
    @boundary
    async def admit_run(self, request: AdmitRequest) -> Admission:
        """Idempotent per workflow run: a repeated call answers from the row that the first one wrote."""
        if not RUN_ID_PATTERN.fullmatch(request.run_id):
            raise ConfigError(f"run id {request.run_id!r} is not usable; allowed: {RUN_ID_RULE}")
        async with self._store.connect() as connection:
            stored = await _stored(connection, request)
        if stored is not None:
            return stored
        # Reading and tokenising may take minutes; in a thread, so that this process stays responsive.
        async with heartbeating():
            checked = await asyncio.to_thread(self._check, request)
        async with self._store.begin() as connection:
            await connection.execute(insert(Run).values(_row(request, checked)).on_conflict_do_nothing())
            admitted = await _stored(connection, request)
        assert admitted is not None
        return admitted

    def _check(self, request: AdmitRequest) -> Checked:
        config = parse_config(request.config)
        rewards, tools = check_parts(config, self._instances, self._gateway)
        dataset = self._datasets.load(config, tools)
        check_reward_rows(rewards, dataset)
        return Checked(config, dataset, total_steps(config, len(dataset.train)), rewards, environment_notes(config))


def check_parts(config: RunConfig, instances: int | None, gateway: str | None = None) -> Parts:
    """All that can be known before the data are read. Raises a `UserError`."""
    check_instances(config, instances)
    check_cost_model(config)
    check_interrupt(config)
    check_model(config)
    rewards = check_rewards(config.reward)
    check_filter(config)
    check_agents(config, gateway)
    return Parts(rewards, check_environment(config))


def check_instances(config: RunConfig, available: int | None) -> None:
    """Raises `ConfigError` when the run wants more rollout instances than there are."""
    wanted = config.psrl.deployment.n_rollout_instances
    if available is not None and wanted > available:
        raise ConfigError(
            f"psrl.deployment.n_rollout_instances={wanted}, but this stack has {available}; "
            f"allowed: 1 to {available}, or start a larger stack"
        )


def check_cost_model(config: RunConfig) -> None:
    """Raises `ConfigError` when the file is not there, or has no entry for the engines. Every host reads its own."""
    path = config.psrl.rollout_coordination.routing_strategy.cost_model_path
    if path is not None:
        read_cost_model(path, layout())


def check_interrupt(config: RunConfig) -> None:
    """Raises `ConfigError` for what the simulator alone can do."""
    if config.psrl.rollout_coordination.partial_rollout.mode is SyncMode.IN_PLACE:
        raise ConfigError(
            "psrl.rollout_coordination.partial_rollout.interrupt=in_place is refused: the engine would go on "
            "with KV cache that the old weights computed, and says only at a request's end which version sampled which "
            "token; allowed: reroute (the simulator takes both)"
        )


def check_reward_rows(rewards: tuple[Loaded, ...], dataset: Dataset) -> None:
    """Raises `RewardLoadError` when a function wants a column that no row has, `DataError` for a row without tests."""
    check_rows(rewards, {"data.train_files": dataset.train, "data.val_files": dataset.validation})


def total_steps(config: RunConfig, prompts: int) -> int:
    """Whole batches only: prompts that do not fill the last one are not trained on. Raises `DataError` for none."""
    epochs, batch = config.trainer.total_epochs, config.psrl.staleness_buffer_entries
    by_data = epochs * prompts // batch
    if by_data < 1:
        raise DataError(
            f"psrl.staleness_buffer_entries={batch} is more than the data: data.train_files hold {prompts} usable "
            f"prompts, for trainer.total_epochs={epochs}; allowed: at most {epochs * prompts}"
        )
    return min(by_data, config.trainer.total_training_steps or by_data)


def admission_of(checked: Checked) -> Admission:
    return Admission(
        config=checked.config.model_dump(mode="json"),
        total_steps=checked.total_steps,
        prompts=len(checked.dataset.train),
        skipped_too_long=checked.dataset.skipped_too_long,
        validation_prompts=len(checked.dataset.validation),
        data_fingerprint=checked.dataset.fingerprint,
        notes=checked.notes,
    )


def _row(request: AdmitRequest, checked: Checked) -> dict[str, object]:
    return {
        **admission_of(checked).model_dump(mode="json", exclude={"schema_version"}),
        "run_id": request.run_id,
        "workflow_run_id": request.workflow_run_id,
        "phase": RunPhase.ADMITTING.value,
    }


async def _stored(connection: AsyncConnection, request: AdmitRequest) -> Admission | None:
    """The admission of this workflow run. Raises `RunExists` when the id belongs to another one."""
    row = (await connection.execute(select(Run.__table__).where(Run.run_id == request.run_id))).one_or_none()
    if row is None:
        return None
    if row.workflow_run_id != request.workflow_run_id:
        raise RunExists(
            f"run id {request.run_id!r} is already used by a run created {row.created_at:%Y-%m-%d %H:%M %Z} "
            f"({row.phase}); start this one under another id"
        )
    return Admission(
        config=row.config,
        total_steps=row.total_steps,
        prompts=row.prompts,
        skipped_too_long=row.skipped_too_long,
        validation_prompts=row.validation_prompts,
        data_fingerprint=row.data_fingerprint,
        notes=tuple(row.notes),
    )
