"""Records of steps, validation rounds and phases."""

import math
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.activities.store.activities import StoreActivities
from psrl.schemas.messages.run import EvaluationReport, RunPhase, RunStatus, StepReport
from psrl.schemas.messages.training import AdvantageStats, BatchInfo, LogProbStats, PublishResult, UpdateStats
from psrl.schemas.tables import EvaluationResult, Group, Run, StepMetric
from tests.support.runs import RUN, admit, config_values, draw, sums, write_jsonl

pytestmark = pytest.mark.integration


@pytest.fixture
async def run(store: AsyncEngine, tiny_model_dir: Path, tmp_path: Path) -> AsyncEngine:
    await admit(store, config_values(tiny_model_dir, write_jsonl(tmp_path / "train.jsonl", sums(5))))
    return store


def step(loss: float) -> StepReport:
    now = datetime.now(UTC)
    return StepReport(
        run_id=RUN,
        buffer=0,
        waited_s=0.5,
        train_started_at=now,
        published_at=now,
        batch=BatchInfo(
            groups=1,
            trajectories=2,
            tokens=4,
            staleness={0: 1},
            reward_mean=0.5,
            reward_std=0.5,
            response_tokens_mean=2,
        ),
        log_probs=LogProbStats(tokens=4, gap_mean_abs=0, gap_max_abs=0, gap_k3=0, untrainable_tokens=0, seconds=0.1),
        advantages=AdvantageStats(mean=0, std=1, zero_share=0),
        update=UpdateStats(
            loss=loss,
            grad_norm=1,
            clip_share=0,
            ratio_mean=1,
            kl=0,
            entropy=1,
            lr=1e-6,
            is_weight_mean=1,
            optimizer_steps=1,
            seconds=0.1,
        ),
        publish=PublishResult(version=1, bytes=10, seconds=0.1),
    )


async def test_a_step_is_recorded_once_and_a_loss_that_is_no_number_survives(run: AsyncEngine) -> None:
    await StoreActivities(run).record_step(step(loss=0.25))
    await StoreActivities(run).record_step(step(loss=math.nan))
    async with run.connect() as connection:
        (row,) = (await connection.execute(select(StepMetric.__table__))).all()
    assert math.isnan(StepReport.model_validate(row.metrics).update.loss)


async def test_a_validation_round_without_a_scored_answer_has_no_accuracy(run: AsyncEngine) -> None:
    report = EvaluationReport(run_id=RUN, version=2, accuracy=None, scored=0, failed=3)
    for _ in range(2):
        await StoreActivities(run).record_evaluation(report)
    async with run.connect() as connection:
        (row,) = (await connection.execute(select(EvaluationResult.__table__))).all()
    assert (row.version, row.accuracy, row.scored, row.failed) == (2, None, 0, 3)


def status(phase: RunPhase, reason: str = "") -> RunStatus:
    return RunStatus(
        run_id=RUN, phase=phase, reason=reason, step=1, total_steps=1, version=1, live_groups=0, occupied_groups=0
    )


async def test_a_run_ends_though_its_reason_cannot_be_stored_as_it_is(run: AsyncEngine) -> None:
    """The reason may quote what a user's code raised."""
    await StoreActivities(run).record_run(status(RunPhase.FAILED, reason="ValueError: answer 'a\0b' is none"))
    async with run.connect() as connection:
        row = (await connection.execute(select(Run.phase, Run.reason))).one()
    assert (row.phase, row.reason) == ("failed", r"ValueError: answer 'a\x00b' is none")


async def test_a_group_leaves_though_its_reason_cannot_be_stored_as_it_is(run: AsyncEngine) -> None:
    (group,) = await draw(run, [0])
    await StoreActivities(run).mark_groups(RUN, (group,), "t00: reward failed: '\0'")
    async with run.connect() as connection:
        row = (await connection.execute(select(Group.status, Group.reason))).one()
    assert (row.status, row.reason) == ("aborted", r"t00: reward failed: '\x00'")


async def test_a_finished_run_keeps_its_record(run: AsyncEngine) -> None:
    records = StoreActivities(run)
    for phase in (RunPhase.RUNNING, RunPhase.DONE, RunPhase.FAILED):
        await records.record_run(status(phase, reason=f"was {phase}"))
    async with run.connect() as connection:
        row = (await connection.execute(select(Run.phase, Run.reason, Run.finished_at))).one()
    assert (row.phase, row.reason) == ("done", "was done")
    assert row.finished_at is not None
