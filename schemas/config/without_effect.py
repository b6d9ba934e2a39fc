"""Keys that do nothing in the mode the rest of the configuration chose. Called by `RunConfig`.

Promise: a value that a person set takes effect, or is refused naming what it needs. A default is never refused.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .root import RunConfig

REDUNDANT = "psrl.rollout_coordination.redundant_rollout"
VALIDATION = ("data.val_max_samples", "trainer.test_freq", "trainer.val_before_train", "rollout.val.temperature")


class Mode(NamedTuple):
    """`keys` work only while `chosen` holds."""

    keys: tuple[str, ...]
    chosen: Callable[["RunConfig"], bool]
    needs: str
    """How a person chooses it."""


MODES = (
    Mode(
        ("algorithm.rollout_correction.rollout_is_threshold",),
        lambda config: config.algorithm.rollout_correction.rollout_is is not None,
        "algorithm.rollout_correction.rollout_is=token",
    ),
    Mode(("actor.kl_loss_coef",), lambda config: config.actor.use_kl_loss, "actor.use_kl_loss=true"),
    Mode(
        (f"{REDUNDANT}.redundant_global_batch_size", f"{REDUNDANT}.redundant_rollout_n"),
        lambda config: config.psrl.rollout_coordination.redundant_rollout.enable,
        f"{REDUNDANT}.enable=true",
    ),
    Mode(
        ("psrl.group_post_process.name", "psrl.group_post_process.max_consecutive_drops"),
        lambda config: config.psrl.group_post_process.enable,
        "psrl.group_post_process.enable=true",
    ),
    Mode(("data.seed",), lambda config: config.data.shuffle, "data.shuffle=true"),
    Mode((*VALIDATION, "rollout.val.n"), lambda config: bool(config.data.val_files), "data.val_files"),
    Mode(("reward.coalesce",), lambda config: config.reward.scope == "trajectory", "reward.scope=trajectory"),
)


def without_effect(config: "RunConfig") -> Iterator[str]:
    """One line per key that was set in vain."""
    for mode in MODES:
        if mode.chosen(config):
            continue
        for key in mode.keys:
            value, default = _value_and_default(config, key)
            if value != default:
                yield f"{key}={value} has no effect; allowed: together with {mode.needs}, or leave it out"


def _value_and_default(config: Any, key: str) -> tuple[Any, Any]:
    *sections, name = key.split(".")
    for section in sections:
        config = getattr(config, section)
    return getattr(config, name), type(config).model_fields[name].get_default()
