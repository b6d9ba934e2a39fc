"""Made-up step reports, for tests of what reads them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from psrl.schemas.ids import RunId
from psrl.schemas.messages.run import StepReport
from psrl.schemas.messages.training import AdvantageStats, BatchInfo, LogProbStats, PublishResult, UpdateStats

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def step_report(
    buffer: int,
    *,
    run: str = "run",
    reward: float = 0.5,
    started: float = 0.0,
    published: float = 1.0,
    waited: float = 0.0,
    depth: int = 0,
    publish_s: float = 0.25,
    staleness: dict[int, int] | None = None,
    **batch: Any,
) -> StepReport:
    """Times are seconds after `EPOCH`."""
    info = {"groups": 4, "trajectories": 16, "tokens": 100, "reward_std": 0.1, "response_tokens_mean": 6.0, **batch}
    return StepReport(
        run_id=RunId(run),
        buffer=buffer,
        waited_s=waited,
        queue_depth=depth,
        train_started_at=at(started),
        published_at=at(published),
        batch=BatchInfo(reward_mean=reward, staleness={0: 4} if staleness is None else staleness, **info),
        log_probs=LogProbStats(
            tokens=100,
            gap_mean_abs=1e-5,
            gap_max_abs=1e-4,
            gap_k3=1e-9,
            engine_gap_mean_abs=1e-6,
            untrainable_tokens=1,
            seconds=0.1,
        ),
        advantages=AdvantageStats(mean=0.0, std=1.0, zero_share=0.25),
        update=UpdateStats(
            loss=0.1,
            grad_norm=1.0,
            clip_share=0.0,
            ratio_mean=1.0,
            kl=0.0,
            entropy=1.0,
            lr=1e-3,
            is_weight_mean=1.0,
            optimizer_steps=1,
            seconds=0.5,
        ),
        publish=PublishResult(version=buffer + 1, bytes=1000, seconds=publish_s),
    )
