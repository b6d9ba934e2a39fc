"""The trajectory store: one table per noun. Bytes live here; workflows carry only the ids.

A group has trajectories, a trajectory has turns, a turn has segments. The prompt is the group's; the context of a later
turn is the prompt and every segment before it, in order of (turn, seq).

Token ids are little-endian int32, log-probs little-endian float32 (`activities.store.codec`). Keys are composite and
readable, so that every row can be found from a name seen in the web UI.
"""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Text,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from .messages.rollout import SegmentEnd
from .status import GroupStatus, SegmentKind, SessionStatus, TrajectoryStatus

TURN_ENDS = (SegmentEnd.STOP, SegmentEnd.LENGTH)
"""What ends a turn; an interruption does not."""


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {
        str: Text,
        int: Integer,
        float: Double,
        bytes: LargeBinary,
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
    }


def _one_of(column: str, values: Iterable[StrEnum]) -> str:
    """The condition of a CHECK constraint."""
    return f"{column} IN ({', '.join(repr(value.value) for value in values)})"


class Run(Base):
    """One run: what was asked for, and how it ended."""

    __tablename__ = "runs"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    workflow_run_id: Mapped[str]
    """First execution's id: tells a retry of the same start from another run of this name."""
    config: Mapped[dict[str, Any]]
    total_steps: Mapped[int]
    prompts: Mapped[int]
    skipped_too_long: Mapped[int]
    validation_prompts: Mapped[int] = mapped_column(default=0, server_default="0")
    data_fingerprint: Mapped[str]
    first_epoch: Mapped[int] = mapped_column(default=0, server_default="0")
    """The first epoch of these data: what was left of the epoch before ended when changed data were accepted."""
    notes: Mapped[list[str]] = mapped_column(JSONB, default=list, server_default="[]")
    """What people were told of their data when the run was admitted."""
    phase: Mapped[str]
    """`RunPhase`; kept for reports, the workflow decides."""
    reason: Mapped[str] = mapped_column(default="", server_default="")
    refused_results: Mapped[int] = mapped_column(default=0, server_default="0")
    """Late rows and results of abandoned attempts that fencing refused."""
    token: Mapped[str | None] = mapped_column(unique=True)
    """Opens sessions of this run at the gateway, and all that it has; null until somebody asked for it."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    finished_at: Mapped[datetime | None]


class WeightVersion(Base):
    """One published version. The row is the publication: a reader sees all of the version or none."""

    __tablename__ = "weight_versions"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    transport: Mapped[str]
    uri: Mapped[str]
    """Where a reader finds it, in the transport's own form."""
    manifest: Mapped[dict[str, Any]]
    """`WeightManifest`: shards with checksums, probe tokens with their log-probs."""
    bytes: Mapped[int] = mapped_column(BigInteger)
    published_at: Mapped[datetime] = mapped_column(server_default=func.now())
    __table_args__ = (ForeignKeyConstraint(["run_id"], ["runs.run_id"], ondelete="CASCADE"),)


class Group(Base):
    """One prompt occurrence."""

    __tablename__ = "groups"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    group_id: Mapped[str] = mapped_column(primary_key=True)
    purpose: Mapped[str]
    """`Purpose`."""
    epoch: Mapped[int]
    position: Mapped[int]
    """Index in the epoch's order of prompts."""
    row: Mapped[int]
    """Row in the data files, counted over all of them."""
    version_tag: Mapped[int]
    """V: no token of the group comes from an older version."""
    prompt_ids: Mapped[bytes]
    prompt_text: Mapped[str]
    data_source: Mapped[str]
    ground_truth: Mapped[Any | None] = mapped_column(JSONB)
    extra: Mapped[dict[str, Any]]
    status: Mapped[str] = mapped_column(default=GroupStatus.LIVE.value, server_default=GroupStatus.LIVE.value)
    """`GroupStatus`."""
    reason: Mapped[str] = mapped_column(default="", server_default="")
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    __table_args__ = (
        ForeignKeyConstraint(["run_id"], ["runs.run_id"], ondelete="CASCADE"),
        CheckConstraint(_one_of("status", GroupStatus), name="status_known"),
        Index(None, "run_id", "status"),
    )


class Session(Base):
    """One conversation with an agent from outside: an episode, which is one trajectory or, where the agent's history
    was not a single one, several branches."""

    __tablename__ = "sessions"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    session_id: Mapped[str] = mapped_column(primary_key=True)
    group_id: Mapped[str]
    episode: Mapped[int]
    """Index of its first branch."""
    episodes: Mapped[int]
    """N' of the group: branch k of episode e has index e + k * N'."""
    token_digest: Mapped[bytes]
    """SHA-256 of the token that opens this session."""
    labels: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    """What the caller said of it when it was opened, by header name: given back, and never acted on."""
    status: Mapped[str] = mapped_column(default=SessionStatus.RUNNING.value, server_default=SessionStatus.RUNNING.value)
    """`SessionStatus`."""
    reason: Mapped[str] = mapped_column(default="", server_default="")
    """Why it was closed or hung."""
    opened_at: Mapped[datetime] = mapped_column(server_default=func.now())
    closed_at: Mapped[datetime | None]
    __table_args__ = (
        ForeignKeyConstraint(["run_id", "group_id"], ["groups.run_id", "groups.group_id"], ondelete="CASCADE"),
        CheckConstraint(_one_of("status", SessionStatus), name="status_known"),
        CheckConstraint("episode >= 0 AND episode < episodes", name="episode_of_the_group"),
        Index(None, "run_id", "group_id", "episode", unique=True),
        Index(None, "token_digest"),
    )


class Trajectory(Base):
    """One of a group's N' answers to its prompt, in one turn or several; of a session, one branch."""

    __tablename__ = "trajectories"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    group_id: Mapped[str] = mapped_column(primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    fence: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Highest attempt that has claimed the trajectory; rows of a lower one are refused. One for all turns: a turn is
    the context of those after it, so a late row in an earlier turn would falsify the later ones."""
    status: Mapped[str] = mapped_column(
        default=TrajectoryStatus.PENDING.value, server_default=TrajectoryStatus.PENDING.value
    )
    """`TrajectoryStatus`."""
    tokens: Mapped[int] = mapped_column(default=0, server_default="0")
    """Sampled tokens of all its turns."""
    reward: Mapped[float | None]
    """Null until scored; a failure stays null, never 0.0."""
    reward_error: Mapped[str] = mapped_column(default="", server_default="")
    reward_metrics: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    """Numbers that the reward function returned beside the reward, by name."""
    forked_index: Mapped[int | None]
    """Of a branch that left another: its context begins with that one's tokens, up to and including `forked_turn`."""
    forked_turn: Mapped[int | None]
    outcome: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """`EpisodeOutcome`, on the first branch of an episode of several turns; null while it is played."""
    finished_at: Mapped[datetime | None]
    scored_at: Mapped[datetime | None]
    __table_args__ = (
        CheckConstraint("num_nonnulls(forked_index, forked_turn) <> 1", name="fork_is_whole"),
        CheckConstraint("forked_index < index", name="forked_from_an_earlier_one"),
        ForeignKeyConstraint(["run_id", "group_id"], ["groups.run_id", "groups.group_id"], ondelete="CASCADE"),
        CheckConstraint(_one_of("status", TrajectoryStatus), name="status_known"),
        CheckConstraint(
            f"reward IS NULL OR {_one_of('status', (TrajectoryStatus.SCORED, TrajectoryStatus.ABORTED))}",
            name="reward_only_when_scored",
        ),
    )


class Turn(Base):
    """One answer of the policy within a trajectory, with what it answers. Made by the first row stored of it."""

    __tablename__ = "turns"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    group_id: Mapped[str] = mapped_column(primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    turn: Mapped[int] = mapped_column(primary_key=True)
    """0, 1, 2 … within the trajectory, without holes."""
    tokens: Mapped[int] = mapped_column(default=0, server_default="0")
    """Sampled tokens of its segments."""
    end: Mapped[str | None]
    """`SegmentEnd`; null while the turn is unfinished."""
    key: Mapped[str | None]
    """Of the request that asked for it, in a session: asked for again it is the same turn."""
    node: Mapped[str | None]
    """Hash of the conversation up to and including this answer, by which the next request names it; null until it was
    answered."""
    step: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """What the environment made of the answer: `StoredStep`; null where there is no environment, or not yet."""
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    """Null while the turn is unfinished."""
    __table_args__ = (
        Index("uq_turns_run_id_group_id_key", "run_id", "group_id", "key", unique=True),
        ForeignKeyConstraint(
            ["run_id", "group_id", "index"],
            ["trajectories.run_id", "trajectories.group_id", "trajectories.index"],
            ondelete="CASCADE",
        ),
        CheckConstraint(_one_of('"end"', TURN_ENDS), name="end_known"),
        CheckConstraint('("end" IS NULL) = (finished_at IS NULL)', name="finished_with_its_end"),
    )


class Segment(Base):
    """A run of tokens inside one turn: produced by one engine under one version, or given by the environment, which
    comes before what is sampled in the turn. Append-only; ids and log-probs have equal lengths (L5)."""

    __tablename__ = "segments"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    group_id: Mapped[str] = mapped_column(primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    turn: Mapped[int] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    """0, 1, 2 … within the turn, without holes."""
    kind: Mapped[str] = mapped_column(default=SegmentKind.SAMPLED.value, server_default=SegmentKind.SAMPLED.value)
    """`SegmentKind`."""
    fence: Mapped[int] = mapped_column(BigInteger)
    version: Mapped[int | None]
    """Null, as are the next and `logprobs`, for tokens that no engine sampled."""
    instance: Mapped[str | None]
    tokens: Mapped[int]
    token_ids: Mapped[bytes]
    logprobs: Mapped[bytes | None]
    """Of the sampled ids, under `version`; NaN where the engine gave none."""
    kv_kept: Mapped[bool | None]
    """After an interruption: whether the engine still had the KV cache of the tokens before. Null for a segment that
    continues none."""
    end: Mapped[str | None]
    """`SegmentEnd` of the turn, on its last segment."""
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime]
    __table_args__ = (
        ForeignKeyConstraint(
            ["run_id", "group_id", "index", "turn"],
            ["turns.run_id", "turns.group_id", "turns.index", "turns.turn"],
            ondelete="CASCADE",
        ),
        CheckConstraint(_one_of("kind", SegmentKind), name="kind_known"),
        CheckConstraint(_one_of('"end"', TURN_ENDS), name="end_known"),
        CheckConstraint("octet_length(token_ids) = 4 * tokens", name="ids_match_count"),
        CheckConstraint("octet_length(logprobs) = 4 * tokens", name="logprobs_match_count"),
        CheckConstraint(
            f"CASE WHEN {_one_of('kind', (SegmentKind.SAMPLED,))}"
            " THEN num_nonnulls(version, instance, logprobs) = 3"
            ' ELSE num_nonnulls(version, instance, logprobs, kv_kept, "end") = 0 END',
            name="sampled_by_an_engine",
        ),
    )


class Batch(Base):
    """The training batch that moves the model from version `buffer` to `buffer + 1`."""

    __tablename__ = "batches"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    buffer: Mapped[int] = mapped_column(primary_key=True)
    info: Mapped[dict[str, Any]]
    """`BatchInfo`."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    __table_args__ = (ForeignKeyConstraint(["run_id"], ["runs.run_id"], ondelete="CASCADE"),)


class BatchMember(Base):
    """A trajectory in a batch. The primary key is the promise: a trajectory is in at most one batch (L2)."""

    __tablename__ = "batch_members"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    group_id: Mapped[str] = mapped_column(primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    buffer: Mapped[int]
    version_tag: Mapped[int]
    """Copied from the group, so that the database itself checks the bound (L1)."""
    staleness: Mapped[int]
    """eta of the run."""
    __table_args__ = (
        ForeignKeyConstraint(["run_id", "buffer"], ["batches.run_id", "batches.buffer"], ondelete="CASCADE"),
        ForeignKeyConstraint(
            ["run_id", "group_id", "index"],
            ["trajectories.run_id", "trajectories.group_id", "trajectories.index"],
            ondelete="CASCADE",
        ),
        CheckConstraint("version_tag <= buffer AND buffer <= version_tag + staleness", name="staleness_bound"),
        Index(None, "run_id", "buffer"),
    )


class StepMetric(Base):
    """What one step did and how long each part took."""

    __tablename__ = "step_metrics"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    buffer: Mapped[int] = mapped_column(primary_key=True)
    metrics: Mapped[dict[str, Any]]
    """`StepReport` plus `waited_s`."""
    train_started_at: Mapped[datetime]
    """The trainer began its first stage."""
    published_at: Mapped[datetime]
    __table_args__ = (ForeignKeyConstraint(["run_id"], ["runs.run_id"], ondelete="CASCADE"),)


class EvaluationResult(Base):
    """One validation round."""

    __tablename__ = "evaluations"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    accuracy: Mapped[float | None]
    scored: Mapped[int]
    failed: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    __table_args__ = (ForeignKeyConstraint(["run_id"], ["runs.run_id"], ondelete="CASCADE"),)


class Checkpoint(Base):
    """One complete checkpoint on disk."""

    __tablename__ = "checkpoints"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    path: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    __table_args__ = (ForeignKeyConstraint(["run_id"], ["runs.run_id"], ondelete="CASCADE"),)


class StoreIdentity(Base):
    """One row, written by the migration that makes the table: by it a stack knows its own database (L14)."""

    __tablename__ = "store_identity"
    id: Mapped[str] = mapped_column(primary_key=True)
