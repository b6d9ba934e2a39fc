"""Messages of the trainer: opening a run and the stages of one step."""

from ..ids import GroupId, RunId
from .base import Message


class OpenTrainerRequest(Message):
    """Load model and optimizer for a run and publish version 0. Idempotent: a published version is returned."""

    run_id: RunId


class StepRequest(Message):
    """One stage of the step that moves the model from version `buffer` to `buffer + 1`. Every stage is idempotent
    by (run, buffer), and a trainer that was restarted rebuilds what the stage needs."""

    run_id: RunId
    buffer: int


class CheckpointRequest(StepRequest):
    """Save the state of version `buffer + 1`. Answered when the state is copied; the files are written beside the next
    step, and a write that failed is repeated by the next stage, whose error it then is."""

    wait: bool = False
    """Answer only when the checkpoint is complete on disk: for the last one of a run."""


class BatchRequest(Message):
    """Record which groups buffer `buffer` takes. Idempotent by (run, buffer)."""

    run_id: RunId
    buffer: int
    taken: tuple[GroupId, ...]
    dropped: tuple[GroupId, ...] = ()


class BatchInfo(Message):
    groups: int
    trajectories: int
    """Sequences: all branches of the episodes."""
    episodes: int | None = None
    """Attempts at a prompt. Null in batches that were not measured so."""
    tokens: int
    """Sampled tokens that are trained on."""
    staleness: dict[int, int]
    """Histogram: buffer - tag, in versions -> groups."""
    token_staleness_min: int | None = None
    """Of the freshest trained token: buffer - version that sampled it. Null in batches that were not measured, as are
    the next three."""
    token_staleness_mean: float | None = None
    """Over all trained tokens."""
    group_waited_mean_s: float | None = None
    """From the last score that completed a group to the batch that took it."""
    group_waited_max_s: float | None = None
    reward_mean: float
    """Over episodes, as are the next three."""
    reward_std: float
    reward_metrics: dict[str, float] = {}
    """Means of the numbers that the reward function returned beside the reward, each over the episodes that have it."""
    response_tokens_mean: float
    """Sampled in all branches."""


class LogProbStats(Message):
    """Old log-probs recomputed by the trainer against those the engine sampled with."""

    tokens: int
    gap_mean_abs: float
    gap_max_abs: float
    gap_k3: float
    """mean(exp(d) - 1 - d) with d = old - rollout: the k3 estimate of KL(rollout || old)."""
    engine_gap_mean_abs: float | None = None
    """The same tokens scored twice under the same weights, by the engine that sampled them and by the trainer. Without
    a policy's own change between versions, which the gaps above include. Null when no token was measured."""
    engine_gap_max_abs: float | None = None
    engine_gap_tokens: int = 0
    """Tokens measured: all of the current version, and a sample (trainer.gap_sample) of each older one."""
    untrainable_tokens: int
    """Tokens whose engine log-prob is missing or not finite: masked out and counted."""
    masked_trajectories: int = 0
    """Cut by their length and left out of the loss (algorithm.mask_truncated)."""
    padding_share: float = 0.0
    """Share of padding among the tokens that the trainer computes."""
    seconds: float


class AdvantageStats(Message):
    mean: float
    std: float
    zero_share: float
    """Share of trajectories whose advantage is 0 (all rewards of the group equal)."""


class UpdateStats(Message):
    loss: float
    grad_norm: float
    clip_share: float
    """Share of trained tokens whose ratio was clipped."""
    ratio_mean: float
    kl: float
    entropy: float
    lr: float
    is_weight_mean: float
    """Mean truncated importance weight; 1.0 when the correction is off."""
    optimizer_steps: int
    seconds: float


class PublishResult(Message):
    version: int
    bytes: int
    seconds: float
    notes: tuple[str, ...] = ()
    """What people should know of how the trainer came to this state: a checkpoint that was damaged and passed over."""


class CheckpointResult(Message):
    path: str
    version: int
    seconds: float
    """That the trainer's other stages had to wait."""
    complete: bool = True
    """False: the state is copied and the files are being written."""


class DataPosition(Message):
    """What was trained on up to `version` (L12): `data_position.json` of a checkpoint."""

    run_id: RunId
    version: int
    data_fingerprint: str
    prompts: int
    """Usable training prompts per epoch: place p is prompt `p mod prompts` of epoch `p div prompts`."""
    skipped_too_long: int
    """Per epoch, never drawn."""
    first_epoch: int
    """Of these data: places before it are not counted."""
    trained_groups: int
    trained_trajectories: int
    next_place: int
    """Every place below was trained on or has left, and is counted here."""
    next_epoch: int
    next_position: int
    """Of `next_place`, within its epoch."""
    trained_ahead: tuple[int, ...]
    """Places from `next_place` on that were trained on already: groups are trained in the order in which they end."""
    left: dict[str, int]
    """Groups given up without training so far, by reason: filtered, failed, dropped, aborted."""
