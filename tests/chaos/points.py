"""The named points: where in the life of a run a process may be ended."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    name: str
    kind: str
    """Whose process passes it: `orchestrator`, `cpu`, `rollout`, `trainer` or `gateway`."""
    where: str
    conversing: bool = False
    """Only a run of agents passes it."""


POINTS = (
    Point("after-reserve", "cpu", "slots are reserved, no group is drawn yet"),
    Point("after-draw", "cpu", "groups are in the store, the activity has not completed"),
    Point("before-start", "orchestrator", "groups are drawn, none is started"),
    Point("between-starts", "orchestrator", "one group of a wave is started"),
    Point("mid-generation", "rollout", "a token was sampled and is not stored"),
    Point("before-write", "rollout", "tokens are about to be stored"),
    Point("after-write", "rollout", "tokens are stored, the engine does not know yet"),
    Point("before-completion", "rollout", "the turn's last row is stored, the activity has not completed"),
    Point("after-score", "cpu", "rewards are stored, the activity has not completed"),
    Point("before-report", "orchestrator", "the group is complete, the run does not know"),
    Point("after-report", "orchestrator", "the run was told, the group has not ended"),
    Point("before-batch", "orchestrator", "the buffer is consumed in the workflow, not in the store"),
    Point("after-batch", "orchestrator", "the batch is stored, the activity has not completed"),
    Point("mid-update", "trainer", "the first of two optimizer steps is done"),
    Point("mid-weight-write", "trainer", "a shard is written, the version is not in its place"),
    Point("before-publish", "trainer", "the version is in its place, its row is not"),
    Point("after-publish", "trainer", "the row is there, the activity has not completed"),
    Point("before-record", "orchestrator", "the version is published, the step is not recorded"),
    Point("before-roll-over", "orchestrator", "published, about to continue as new"),
    Point("checkpoint-begin", "trainer", "the temporary folder is made"),
    Point("checkpoint-model", "trainer", "the model is saved, the tokenizer is not"),
    Point("checkpoint-state", "trainer", "optimizer state is saved, no marker"),
    Point("checkpoint-flush", "trainer", "all files are there, one is flushed"),
    Point("checkpoint-rename", "trainer", "all is flushed, the rename comes next"),
    Point("checkpoint-renamed", "trainer", "renamed, the parent folder is not flushed"),
    Point("checkpoint-row", "trainer", "complete on disk, no row in the store"),
    Point("checkpoint-prune", "trainer", "an old one has lost its marker, its files are there"),
    Point("before-pull", "rollout", "paused, no byte of the new version is read"),
    Point("mid-pull", "rollout", "the new version is read, not loaded"),
    Point("turn-placed", "gateway", "the turn is in the store, its session does not know", conversing=True),
    Point("turn-sampled", "gateway", "the turn has ended, its agent has no answer", conversing=True),
    Point("turn-accepted", "orchestrator", "the session has taken the turn, no engine knows", conversing=True),
    Point("turn-played", "orchestrator", "the engine has ended, the session has not answered", conversing=True),
    Point("session-closing", "orchestrator", "the session takes no further turn and is not closed", conversing=True),
    Point("session-opened", "cpu", "the session is open, its agent does not run", conversing=True),
    Point("agent-ended", "cpu", "the agent is done, its session is open", conversing=True),
    Point("episode-ended", "cpu", "the episode's end is stored, the activity has not completed", conversing=True),
)
BY_NAME = {point.name: point for point in POINTS}
OF_EVERY_RUN = tuple(point.name for point in POINTS if not point.conversing)
