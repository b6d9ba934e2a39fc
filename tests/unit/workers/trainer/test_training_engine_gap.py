"""The same tokens scored by engine and trainer under the same weights."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from transformers import Qwen2ForCausalLM

from psrl.activities.training.batch import TrainBatch
from psrl.activities.weights.transport import Lease
from psrl.schemas.errors import WeightsRefused
from psrl.schemas.weights import WeightManifest, WeightProbe
from psrl.workers.trainer.engine_gap import with_engine_gap
from psrl.workers.trainer.state import TrainerState, initial_state
from psrl.workers.trainer.step import old_log_probs
from tests.support.tiny_model import tiny_model, tiny_tokenizer
from tests.support.training import run_configuration, synthetic_batch


def scored(batch: TrainBatch, model: Qwen2ForCausalLM, version: int, offset: float = 0.0) -> TrainBatch:
    """The batch as an engine with these weights would have sampled it, every log-prob off by `offset`."""
    sequences = []
    for sequence in batch.sequences:
        with torch.no_grad():
            logits = model(input_ids=sequence.ids[None], use_cache=False).logits[0]
        rollout = logits.log_softmax(-1)[:-1].gather(1, sequence.ids[1:, None]).squeeze(1)[sequence.prompt_tokens - 1 :]
        versions = torch.full_like(sequence.versions, version)
        sequences.append(dataclasses.replace(sequence, rollout=rollout + offset, versions=versions))
    return TrainBatch(tuple(sequences))


def both(old: TrainBatch, new: TrainBatch) -> TrainBatch:
    moved = [dataclasses.replace(sequence, group=sequence.group + old.groups) for sequence in new.sequences]
    return TrainBatch((*old.sequences, *moved))


def published(model: Qwen2ForCausalLM) -> dict[str, torch.Tensor]:
    """As versions are published: without the second name of the tied head."""
    return {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}


def leased(tensors: dict[str, torch.Tensor]) -> Callable[[int], Lease]:
    def lease(version: int) -> Lease:
        probe = WeightProbe(token_ids=(), logprobs=())
        manifest = WeightManifest(run_id="run", version=version, transport="", uri="", shards=(), probe=probe)
        return Lease(manifest, tensors, release=lambda: None)

    return lease


def nothing_is_kept(version: int) -> Lease:
    raise WeightsRefused(f"version {version}: shard-000.safetensors is missing")


@pytest.fixture
def state() -> TrainerState:
    state = initial_state(run_configuration(), tiny_model(tiny_tokenizer(), seed=1))
    state.version = 3
    return state


def test_the_engine_gap_leaves_out_what_the_policy_learnt_since(state: TrainerState) -> None:
    earlier = tiny_model(tiny_tokenizer(), seed=2)
    batch = both(
        scored(synthetic_batch(2, 3, seed=1), earlier, 2), scored(synthetic_batch(2, 3, seed=2), state.model, 3)
    )
    computed = old_log_probs(state, batch, None)
    measured = with_engine_gap(computed.stats, state, batch, computed.old, leased(published(earlier)))
    assert measured.gap_mean_abs > 0.01
    assert measured.engine_gap_mean_abs is not None
    assert measured.engine_gap_mean_abs < 1e-5
    assert measured.engine_gap_tokens == len(batch.tokens)


def test_an_engine_that_served_other_weights_than_it_says_shows_in_the_gap(state: TrainerState) -> None:
    earlier = tiny_model(tiny_tokenizer(), seed=2)
    batch = scored(synthetic_batch(2, 3), state.model, 2)
    computed = old_log_probs(state, batch, None)
    measured = with_engine_gap(computed.stats, state, batch, computed.old, leased(published(earlier)))
    assert measured.engine_gap_mean_abs is not None
    assert measured.engine_gap_mean_abs > 0.01


def test_a_constant_error_of_the_engine_is_measured_as_such(state: TrainerState) -> None:
    batch = scored(synthetic_batch(2, 3), state.model, 3, offset=0.25)
    computed = old_log_probs(state, batch, None)
    measured = with_engine_gap(computed.stats, state, batch, computed.old, nothing_is_kept)
    assert measured.engine_gap_mean_abs == pytest.approx(0.25, abs=1e-5)
    assert measured.engine_gap_max_abs == pytest.approx(0.25, abs=1e-5)


def test_tokens_of_a_version_that_is_no_longer_kept_are_not_measured(state: TrainerState) -> None:
    batch = scored(synthetic_batch(2, 3), state.model, 1)
    computed = old_log_probs(state, batch, None)
    measured = with_engine_gap(computed.stats, state, batch, computed.old, nothing_is_kept)
    assert (measured.engine_gap_mean_abs, measured.engine_gap_tokens) == (None, 0)


def test_a_version_that_is_damaged_by_now_is_left_out_and_the_step_goes_on(
    state: TrainerState, caplog: pytest.LogCaptureFixture
) -> None:
    batch = both(
        scored(synthetic_batch(2, 3, seed=1), state.model, 2), scored(synthetic_batch(2, 3, seed=2), state.model, 3)
    )
    computed = old_log_probs(state, batch, None)
    measured = with_engine_gap(computed.stats, state, batch, computed.old, nothing_is_kept)
    assert 0 < measured.engine_gap_tokens < len(batch.tokens)
    assert "leaves out tokens of version 2: version 2: shard-000.safetensors is missing" in caplog.text
