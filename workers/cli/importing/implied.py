"""What a file of theirs leaves out and means all the same: defaults of veRL that differ from ours. Called by
`translate.py`."""

from collections.abc import Iterator, Mapping
from typing import Any

from .given import Given

BATCH, MINI_BATCH = "data.train_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"
BATCH_OF_PSRL = "psrl.staleness_buffer_entries"
DEFAULTS: Mapping[str, Any] = {
    "algorithm.adv_estimator": "gae",
    "data.max_prompt_length": 512,
    "actor_rollout_ref.actor.fsdp_config.dtype": "bfloat16",
}


def implied(known: Mapping[str, Any]) -> Iterator[Given]:
    """`known`: by key, in the spelling of the table."""
    for key, value in DEFAULTS.items():
        if key not in known:
            yield Given(key, value, 0, implied=True)
    batch = known.get(BATCH_OF_PSRL, known.get(BATCH))
    if batch is None and not any(key.startswith("psrl.") for key in known):
        batch = 1024
        yield Given(BATCH, batch, 0, implied=True)
    if MINI_BATCH not in known and isinstance(batch, int) and batch > 256 and batch % 256 == 0:
        yield Given(MINI_BATCH, 256, 0, implied=True)
