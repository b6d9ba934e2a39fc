"""Episodes of several sequences: one advantage for all of them, and what each weighs in the loss."""

import copy
import math
from typing import Any

import pytest
import torch
from transformers import Qwen2ForCausalLM

from psrl.activities.training.batch import NO_VERSION, SampledSequence, TrainBatch
from psrl.activities.training.logprobs import micro_batch_logits, target_log_probs
from psrl.activities.training.loss import aggregation_units, aggregation_weights, sequence_shares
from psrl.activities.training.packing import plan_batch
from psrl.schemas.config import BatchAggMode, LossAggregation
from psrl.workers.trainer.state import TrainerState, make_optimizer
from psrl.workers.trainer.step import advantages, old_log_probs, update
from psrl.workers.trainer.world import World
from tests.support.tiny_model import tiny_model, tiny_tokenizer
from tests.support.training import run_configuration

CPU = torch.device("cpu")
GROUP = 0


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    return tiny_model(tiny_tokenizer(), spread=0.1)


def conversation(
    episode: int, reward: float | None, mask: str, *, group: int = GROUP, prompt: int = 0, truncated: bool = False
) -> SampledSequence:
    """`mask`: `.` for a token of the context, `x` for a sampled one."""
    sampled = torch.tensor([mark == "x" for mark in mask])
    count = len(mask)
    return SampledSequence(
        group=group,
        episode=episode,
        prompt_tokens=prompt,
        ids=(torch.arange(prompt + count) * 7 + 3 * episode + 11) % 100,
        rollout=torch.where(sampled, torch.full((count,), -1.0), torch.full((count,), math.nan)),
        reward=reward,
        versions=torch.where(sampled, 0, NO_VERSION).int(),
        mask=sampled,
        truncated=truncated,
    )


def three_branches() -> TrainBatch:
    """A group of three episodes, of which the first has three sequences with 2, 1 and 3 sampled tokens; the others have
    3 and 4."""
    return TrainBatch(
        (
            conversation(0, 1.0, "..x.x"),
            conversation(1, 0.25, ".xxx"),
            conversation(2, 0.25, "...xxxx"),
            conversation(0, 1.0, ".......x"),
            conversation(0, 1.0, "....xxx"),
        )
    )


def test_an_episode_has_one_advantage_which_all_its_sequences_get() -> None:
    """Rewards 1, 0.25 and 0.25 of three episodes, not of five sequences: mean 0.5, standard deviation sqrt(3) / 4."""
    batch = three_branches()
    assert batch.episodes == (0, 1, 2, 0, 0)
    plain = advantages(run_configuration(algorithm={"norm_adv_by_std_in_grpo": False}), batch)
    assert plain.of_sequences.tolist() == [0.5, -0.25, -0.25, 0.5, 0.5]
    assert (plain.stats.mean, plain.stats.std) == (0.0, pytest.approx(math.sqrt(3) / 4))
    divided = advantages(run_configuration(), batch)
    scale = math.sqrt(3) / 4 + 1e-6
    torch.testing.assert_close(divided.of_sequences, torch.tensor([0.5, -0.25, -0.25, 0.5, 0.5]) / scale)


LOSSES = {
    # Every token's loss is minus its advantage, since nothing was updated yet: -1/2 in the first episode, else 1/4.
    ("token-mean", "trajectory"): (6 * -0.5 + 7 * 0.25) / 13,
    ("token-mean", "request"): (6 * -0.5 / 3 + 7 * 0.25) / (6 / 3 + 7),
    ("seq-mean-token-mean", "trajectory"): (3 * -0.5 + 2 * 0.25) / 5,
    ("seq-mean-token-mean", "request"): (-0.5 + 2 * 0.25) / 3,
    ("seq-mean-token-sum", "trajectory"): (6 * -0.5 + 7 * 0.25) / 5,
    ("seq-mean-token-sum", "request"): (6 * -0.5 / 3 + 7 * 0.25) / 3,
}


@pytest.mark.parametrize(("aggregation", "batch_agg"), LOSSES)
@pytest.mark.parametrize("max_tokens", [16384, 32])
def test_the_loss_of_an_episode_of_three_sequences_is_that_computed_by_hand(
    model: Qwen2ForCausalLM, aggregation: str, batch_agg: str, max_tokens: int
) -> None:
    config = run_configuration(
        algorithm={"norm_adv_by_std_in_grpo": False},
        actor={"loss_agg_mode": aggregation, "ppo_max_token_len_per_gpu": max_tokens},
        psrl={"agentic_rl": {"agent_loop": "session", "agent_command": ["agent"], "batch_agg_mode": batch_agg}},
    )
    batch, trained = three_branches(), copy.deepcopy(model)
    state = TrainerState(config, trained, make_optimizer(trained, config), 0)
    log_probs = old_log_probs(state, batch, None)
    assert log_probs.stats.tokens == 13
    stats = update(state, batch, log_probs, advantages(config, batch), World())
    assert stats.loss == pytest.approx(LOSSES[aggregation, batch_agg], abs=1e-6)


def test_sequences_of_an_episode_share_one_weight_among_those_that_are_trained_on() -> None:
    """Sequence 3 is of the episode of 0 and 4, and has no trained token."""
    owners, episodes = torch.tensor([0, 0, 1, 4, 4]), torch.tensor([8, 2, 2, 8, 8])
    shares = sequence_shares(owners, episodes, BatchAggMode.REQUEST)
    assert shares.tolist() == [0.5, 0.5, 1.0, 0.5, 0.5]
    assert sequence_shares(owners, episodes, BatchAggMode.TRAJECTORY).tolist() == [1.0] * 5
    for mode, units in zip(LossAggregation, (3, 2, 2), strict=True):
        assert aggregation_units(owners, shares, mode) == units
        weights = aggregation_weights(owners, shares, mode, units)
        if mode is not LossAggregation.SEQ_MEAN_TOKEN_SUM:
            assert float(weights.sum()) == pytest.approx(1)


def test_nothing_that_is_trained_on_is_nothing_to_share() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert sequence_shares(none, torch.tensor([0]), BatchAggMode.REQUEST).tolist() == []


def test_a_failed_episode_gives_none_of_its_sequences_an_advantage() -> None:
    rewards: list[tuple[int, float | None]] = [(0, None), (1, 1.0), (2, 0.0), (0, None)]
    batch = TrainBatch(tuple(conversation(episode, reward, ".x") for episode, reward in rewards))
    found = advantages(run_configuration(algorithm={"norm_adv_by_std_in_grpo": False}), batch)
    assert found.of_sequences.tolist() == [0.0, 0.5, -0.5, 0.0]
    assert len(batch.tokens) == 2


def test_episodes_of_the_same_number_in_two_groups_are_two() -> None:
    batch = TrainBatch(tuple(conversation(0, float(group), ".x", group=group) for group in (0, 1, 1)))
    assert batch.episodes == (0, 1, 1)


def test_a_truncated_episode_is_masked_with_all_its_sequences_and_counts_as_one() -> None:
    cut: dict[str, Any] = {"truncated": True}
    sequences = (conversation(0, 1.0, ".x", **cut), conversation(1, 0.0, ".x"), conversation(0, 1.0, ".xx", **cut))
    batch = TrainBatch(sequences, mask_truncated=True)
    assert (batch.masked, batch.tokens.sequence.tolist()) == (1, [1])


# --- sequences without a prompt --------------------------------------------------------------------------------------


def test_the_first_token_of_a_sequence_is_never_trained_on_since_nothing_predicts_it() -> None:
    tokens = TrainBatch((conversation(0, 1.0, "xx.x"),)).tokens
    assert (tokens.position.tolist(), tokens.untrainable) == ([1, 3], 1)
    tokens = TrainBatch((conversation(0, 1.0, "xx.x", prompt=1),)).tokens
    assert (tokens.position.tolist(), tokens.untrainable) == ([1, 2, 4], 0)


def test_log_probs_of_sequences_without_a_prompt_are_those_of_each_alone(model: Qwen2ForCausalLM) -> None:
    batch = TrainBatch(
        (
            conversation(0, 1.0, ".xx..x"),
            conversation(1, 0.0, "...xxxxx"),
            conversation(0, 1.0, ".x"),
            conversation(1, 0.0, "..x", prompt=3),
        )
    )
    wanted = []
    for sequence in batch.sequences:
        rows = model(input_ids=sequence.ids[None]).logits[0].log_softmax(-1)
        places = sequence.mask.nonzero().squeeze(1) + sequence.prompt_tokens
        wanted += [rows[place - 1, sequence.ids[place]] for place in places.tolist()]
    for max_tokens in (4, 1000):
        plan = plan_batch(batch, None, max_tokens, CPU)
        found = torch.full((len(batch.tokens),), math.nan)
        with torch.no_grad():
            for micro in plan.mini_batches[0].micro_batches:
                found[micro.tokens] = target_log_probs(micro_batch_logits(model, micro, 1.0), micro.targets)
        torch.testing.assert_close(found, torch.stack(wanted), atol=1e-5, rtol=0)
