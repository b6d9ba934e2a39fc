"""A run in the middle of its life, in the store and on disk, that kept every promise: what the audit's tests damage.

eta 1, batches of 2 groups of 2 trajectories, 3 steps trained of 5, 20 prompts. One group has failed, one was filtered,
one was dropped, two were cut short by a stop of which one is drawn again, and one is being generated. Two trajectories,
a trained one among them, have a second turn, which answers their environment. One trained episode has two branches: the
second left the first after its turn, and was cut in its own second turn.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sqlalchemy import Connection, Engine, insert, update

from psrl.activities.store.codec import encode_ids, encode_logprobs
from psrl.activities.weights.transports import open_transport
from psrl.activities.weights.versions import publish_version
from psrl.schemas.config import PsMode
from psrl.schemas.ids import RunId, Version, training_group, validation_group
from psrl.schemas.messages.episodes import EpisodeOutcome, TerminateReason
from psrl.schemas.messages.training import LogProbStats
from psrl.schemas.tables import Batch, BatchMember, Group, Run, Segment, StepMetric, Trajectory, Turn
from psrl.schemas.weights import WeightProbe
from tests.support.steps import at, step_report

RUN = RunId("kept")
CONFIG = {
    "psrl": {"staleness": 1, "rollout_n": 2, "staleness_buffer_entries": 2},
    "data": {"max_response_length": 6},
}
VERSIONS = 4
PROBE = WeightProbe(token_ids=(1, 2), logprobs=(-0.5,))

TRAINED = {0: ((0, 0), (1, 0)), 1: ((2, 0), (4, 1)), 2: ((5, 1), (6, 2))}
"""Buffer -> (group, tag)."""
LEFT = {3: "failed", 7: "filtered", 8: "dropped", 9: "aborted", 10: "aborted"}
LIVE = (11, 9)
"""Group, and the position that it draws again: that of group 9. Position 10 waits."""


def make_kept_run(engine: Engine, weights: Path) -> None:
    with engine.begin() as connection:
        _add_run(connection)
        transport = open_transport(PsMode.FILE, weights)
        for version in range(VERSIONS):
            tensors = {"w": torch.full((4,), float(version))}
            publish_version(connection, transport.write(RUN, Version(version), tensors, PROBE))
        for buffer, members in TRAINED.items():
            _add_batch(connection, buffer, members)
        _add_turn(connection, training_group(2), 1, [(1, 1)], turn=1, environment=2)
        _lengthen(connection, training_group(2), 1, 1)
        _add_branch(connection, training_group(5), tag=1, buffer=2)
        for number, status in LEFT.items():
            _add_group(connection, training_group(number), number, 2, status)
        _add_failed(connection, training_group(3))
        for number in (7, 8):
            _add_scored(connection, training_group(number), [[(2, 3)], [(2, 3)]])
        _add_turn(connection, training_group(7), 1, [(2, 2)], turn=1, environment=4)
        _lengthen(connection, training_group(7), 1, 2)
        for number in (9, 10):
            _add_trajectories(connection, training_group(number), ["aborted"] * 2)
        group = training_group(LIVE[0])
        _add_group(connection, group, LIVE[1], 2, "live")
        _add_trajectories(connection, group, ["pending"] * 2, tokens=3, fence=1)
        _add_turn(connection, group, 0, [(3, 3)], ended=False)
        _add_turn(connection, group, 1, [(3, 3)], ended=False)
        _add_group(connection, validation_group(Version(0), 0), 0, 0, "live", purpose="validation")
        _add_scored(connection, validation_group(Version(0), 0), [[(1, 3)]])


def _add_run(connection: Connection) -> None:
    row = {
        **{"run_id": RUN, "workflow_run_id": "w", "config": CONFIG, "total_steps": 5, "prompts": 20},
        **{"skipped_too_long": 0, "data_fingerprint": "f", "phase": "running", "refused_results": 2},
    }
    connection.execute(insert(Run), row)


def _add_batch(connection: Connection, buffer: int, members: Sequence[tuple[int, int]]) -> None:
    """Every trajectory of the batch spans the versions from its tag to the buffer, and moved once."""
    connection.execute(insert(Batch), {"run_id": RUN, "buffer": buffer, "info": {}})
    for number, tag in members:
        group = training_group(number)
        _add_group(connection, group, number, tag, "trained")
        _add_scored(connection, group, [[(tag, 2), (buffer, 3)]] * 2)
        key = {"run_id": RUN, "group_id": group, "buffer": buffer, "version_tag": tag, "staleness": 1}
        connection.execute(insert(BatchMember), [{**key, "index": index} for index in range(2)])
    stats = LogProbStats(tokens=20, gap_mean_abs=0.0, gap_max_abs=0.0, gap_k3=0.0, untrainable_tokens=0, seconds=0.1)
    report = step_report(buffer, run=RUN).model_copy(update={"log_probs": stats})
    row = {"run_id": RUN, "buffer": buffer, "metrics": report.model_dump(mode="json")}
    connection.execute(insert(StepMetric), {**row, "train_started_at": at(0), "published_at": at(1)})


def _add_group(
    connection: Connection, group: str, position: int, tag: int, status: str, *, purpose: str = "train"
) -> None:
    left = status not in {"trained", "live"}
    row = {
        **{
            "run_id": RUN,
            "group_id": group,
            "purpose": purpose,
            "epoch": 0,
            "position": position,
            "row": 100 + position,
        },
        **{"version_tag": tag, "prompt_ids": encode_ids([1]), "prompt_text": "", "data_source": "", "extra": {}},
        **{"status": status, "reason": f"it was {status}" if left else ""},
    }
    connection.execute(insert(Group), row)


def _add_scored(connection: Connection, group: str, trajectories: Sequence[Sequence[tuple[int, int]]]) -> None:
    """A trajectory is a list of segments: (version, tokens)."""
    for index, segments in enumerate(trajectories):
        _add_trajectory(connection, group, index, "scored", sum(tokens for _, tokens in segments), reward=0.5)
        _add_turn(connection, group, index, segments)


def _add_failed(connection: Connection, group: str) -> None:
    for index in range(2):
        _add_trajectory(connection, group, index, "failed", 3, reward_error="ValueError: no number")
        _add_turn(connection, group, index, [(2, 3)])


def _add_trajectories(
    connection: Connection, group: str, statuses: Sequence[str], tokens: int = 0, fence: int = 0
) -> None:
    for index, status in enumerate(statuses):
        _add_trajectory(connection, group, index, status, tokens, fence=fence)


def _add_trajectory(connection: Connection, group: str, index: int, status: str, tokens: int, **values: Any) -> None:
    row = {"run_id": RUN, "group_id": group, "index": index, "status": status, "tokens": tokens}
    connection.execute(insert(Trajectory), {**row, "fence": 9, **values})


def _add_branch(connection: Connection, group: str, tag: int, buffer: int) -> None:
    """Of episode 0, which an outside agent has played."""
    first = (Trajectory.run_id == RUN, Trajectory.group_id == group, Trajectory.index == 0)
    ended = EpisodeOutcome(ended=TerminateReason.FINISHED).model_dump(mode="json")
    connection.execute(update(Trajectory).where(*first).values(outcome=ended))
    _add_trajectory(connection, group, 2, "scored", 5, reward=0.5, forked_index=0, forked_turn=0)
    _add_turn(connection, group, 2, [(buffer, 4)], environment=2)
    _add_turn(connection, group, 2, [(buffer, 1)], turn=1, environment=1, ended=False)
    row = {"run_id": RUN, "group_id": group, "index": 2, "buffer": buffer, "version_tag": tag, "staleness": 1}
    connection.execute(insert(BatchMember), row)


def _lengthen(connection: Connection, group: str, index: int, tokens: int) -> None:
    """The trajectory counts so many more."""
    where = (Trajectory.run_id == RUN, Trajectory.group_id == group, Trajectory.index == index)
    connection.execute(update(Trajectory).where(*where).values(tokens=Trajectory.tokens + tokens))


def _add_turn(
    connection: Connection,
    group: str,
    index: int,
    segments: Sequence[tuple[int, int]],
    *,
    turn: int = 0,
    environment: int = 0,
    ended: bool = True,
) -> None:
    """Each segment by an attempt and an instance of its own, after so many tokens of the environment."""
    key = {"run_id": RUN, "group_id": group, "index": index, "turn": turn}
    times = {"started_at": at(0), "finished_at": at(1)}
    row = {**key, "tokens": sum(tokens for _, tokens in segments), "end": "stop" if ended else None}
    connection.execute(insert(Turn), {**row, **times, "finished_at": times["finished_at"] if ended else None})
    given = 0
    if environment:
        row = {**key, "seq": 0, "kind": "environment", "fence": 0, "tokens": environment}
        connection.execute(insert(Segment), {**row, "token_ids": encode_ids([8] * environment), **times})
        given = 1
    for number, (version, tokens) in enumerate(segments):
        row = {
            **{**key, "seq": given + number, "fence": turn + number + 1},
            **{"version": version, "instance": f"rollout-{number}", "tokens": tokens},
            **{"token_ids": encode_ids([7] * tokens), "logprobs": encode_logprobs([-0.5] * tokens)},
            **{"kv_kept": False if number else None},
            "end": "stop" if ended and number == len(segments) - 1 else None,
        }
        connection.execute(insert(Segment), {**row, **times})
