"""A finished run in the store, row by row, for tests of what reads it."""

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from psrl.activities.store.codec import encode_ids, encode_logprobs
from psrl.schemas.messages.run import StepReport
from psrl.schemas.tables import (
    Batch,
    BatchMember,
    EvaluationResult,
    Group,
    Run,
    Segment,
    StepMetric,
    Trajectory,
    Turn,
)
from tests.support.steps import at


def add_run(
    engine: Engine, run_id: str, model_path: str = "", phase: str = "done", finished: float | None = 60
) -> None:
    with Session(engine) as session, session.begin():
        session.add(
            Run(
                run_id=run_id,
                workflow_run_id="w",
                config={"model": {"path": model_path}, "trainer": {"project_name": "demo"}},
                total_steps=2,
                prompts=4,
                skipped_too_long=0,
                validation_prompts=0,
                data_fingerprint="f",
                phase=phase,
                created_at=at(0),
                finished_at=None if finished is None else at(finished),
            )
        )


def add_step(engine: Engine, report: StepReport) -> None:
    with Session(engine) as session, session.begin():
        session.add(
            StepMetric(
                run_id=report.run_id,
                buffer=report.buffer,
                metrics=report.model_dump(mode="json"),
                train_started_at=report.train_started_at,
                published_at=report.published_at,
            )
        )


def add_evaluation(engine: Engine, run_id: str, version: int, accuracy: float | None) -> None:
    with Session(engine) as session, session.begin():
        session.add(EvaluationResult(run_id=run_id, version=version, accuracy=accuracy, scored=4, failed=0))


def add_trajectory(
    engine: Engine, run_id: str, group_id: str, segments: list[tuple[int, float, float, list[int]]], buffer: int = 0
) -> None:
    """One group with one trained trajectory; a segment is (version, begin, end, ids)."""
    key = {"run_id": run_id, "group_id": group_id}
    with Session(engine) as session, session.begin():
        session.add(
            Group(
                **key,
                purpose="train",
                epoch=0,
                position=0,
                row=0,
                version_tag=0,
                prompt_ids=encode_ids([1, 2]),
                prompt_text="2+3=",
                data_source="arithmetic",
                ground_truth="5",
                extra={},
            )
        )
        session.flush()
        tokens = sum(len(ids) for *_, ids in segments)
        session.add(Trajectory(**key, index=0, status="scored", tokens=tokens, reward=1.0))
        session.flush()
        times = {"started_at": at(segments[0][1]), "finished_at": at(segments[-1][2])}
        session.add(Turn(**key, index=0, turn=0, tokens=tokens, end="stop", **times))
        session.flush()
        for seq, (version, begin, end, ids) in enumerate(segments):
            session.add(
                Segment(
                    **key,
                    index=0,
                    turn=0,
                    seq=seq,
                    fence=1,
                    version=version,
                    instance=f"rollout-{seq}",
                    tokens=len(ids),
                    token_ids=encode_ids(ids),
                    logprobs=encode_logprobs([-0.5] * len(ids)),
                    end="stop" if seq == len(segments) - 1 else None,
                    started_at=at(begin),
                    finished_at=at(end),
                )
            )
        if session.get(Batch, (run_id, buffer)) is None:
            session.add(Batch(run_id=run_id, buffer=buffer, info={}))
            session.flush()
        session.add(BatchMember(**key, index=0, buffer=buffer, version_tag=0, staleness=1))
