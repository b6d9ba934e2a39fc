"""Micro-batches, and the log-probs computed from them."""

import math
import random

import pytest
import torch
from transformers import Qwen2ForCausalLM

from psrl.activities.training.batch import SampledSequence, TrainBatch
from psrl.activities.training.logprobs import entropies, log_prob_gap, micro_batch_logits, target_log_probs
from psrl.activities.training.packing import BatchPlan, cut_rows, plan_batch
from psrl.schemas.errors import InvariantViolated
from tests.support.tiny_model import tiny_model, tiny_tokenizer
from tests.support.training import synthetic_batch

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    return tiny_model(tiny_tokenizer())


def log_probs_by_plan(model: Qwen2ForCausalLM, batch: TrainBatch, plan: BatchPlan, temperature: float) -> torch.Tensor:
    found = torch.full((len(batch.tokens),), math.nan)
    with torch.no_grad():
        for mini in plan.mini_batches:
            for micro in mini.micro_batches:
                found[micro.tokens] = target_log_probs(micro_batch_logits(model, micro, temperature), micro.targets)
    return found


def log_probs_one_by_one(model: Qwen2ForCausalLM, batch: TrainBatch, temperature: float) -> torch.Tensor:
    found = []
    with torch.no_grad():
        for sequence in batch.sequences:
            logits = model(input_ids=sequence.ids[None], use_cache=False).logits[0] / temperature
            chosen = logits.log_softmax(-1)[:-1].gather(1, sequence.ids[1:, None]).squeeze(1)
            response = chosen[sequence.prompt_tokens - 1 :]
            if sequence.reward is not None:
                found.append(response[sequence.rollout.isfinite()])
    return torch.cat(found)


@pytest.mark.parametrize(("max_tokens", "mini_batch_groups"), [(100_000, None), (64, None), (200, 2), (1, 1)])
def test_packed_log_probs_are_those_of_each_sequence_alone(
    model: Qwen2ForCausalLM, max_tokens: int, mini_batch_groups: int | None
) -> None:
    shares = {"missing_share": 0.1, "environment_share": 0.2}
    batch = synthetic_batch(6, 5, **shares, reward=lambda rng: None if rng.random() < 0.1 else 1.0)
    plan = plan_batch(batch, mini_batch_groups, max_tokens, CPU)
    packed = log_probs_by_plan(model, batch, plan, temperature=0.7)
    torch.testing.assert_close(packed, log_probs_one_by_one(model, batch, 0.7), atol=1e-5, rtol=0)


def sequence(prompt: int, ids: torch.Tensor, rollout: torch.Tensor, reward: float | None) -> SampledSequence:
    versions, mask = torch.zeros(len(rollout), dtype=torch.int32), torch.ones(len(rollout), dtype=torch.bool)
    return SampledSequence(0, 0, prompt, ids, rollout, reward, versions, mask)


def test_missing_log_probs_and_rewards_leave_their_tokens_out_and_are_counted() -> None:
    ids = torch.arange(5)
    known, missing = torch.tensor([-0.1, math.nan, -0.3]), torch.tensor([-0.1, -math.inf, math.nan])
    batch = TrainBatch(
        (
            sequence(2, ids, known, 1.0),
            sequence(2, ids, missing, 0.0),
            sequence(2, ids, known, None),
        )
    )
    tokens = batch.tokens
    assert tokens.untrainable == 3
    assert tokens.sequence.tolist() == [0, 0, 1]
    assert tokens.position.tolist() == [2, 4, 2]
    assert tokens.target.tolist() == [2, 4, 2]


def test_the_environments_tokens_are_neither_trained_on_nor_counted_as_missing() -> None:
    rollout = torch.tensor([-0.1, math.nan, math.nan, -0.4])
    mask = torch.tensor([True, True, False, True])
    versions = torch.zeros(4, dtype=torch.int32)
    tokens = TrainBatch((SampledSequence(0, 0, 1, torch.arange(5), rollout, 1.0, versions, mask),)).tokens
    assert (tokens.position.tolist(), tokens.untrainable) == ([1, 4], 1)
    known = torch.full((4,), -0.1)
    tokens = TrainBatch((SampledSequence(0, 0, 1, torch.arange(5), known, 1.0, versions, mask),)).tokens
    assert tokens.position.tolist() == [1, 2, 4], "a log-prob does not make a token the policy's"


def test_columns_of_different_lengths_are_refused_by_name() -> None:
    versions, mask = torch.zeros(3, dtype=torch.int32), torch.ones(2, dtype=torch.bool)
    with pytest.raises(InvariantViolated, match=r"L5: .* has 3 ids, 3 log-probs, 3 versions, 2 mask"):
        SampledSequence(0, 0, 2, torch.arange(5), torch.zeros(3), 1.0, versions, mask)


def test_a_sequence_without_trainable_token_costs_nothing() -> None:
    ids = torch.arange(4)
    batch = TrainBatch((sequence(4, ids, torch.empty(0), 1.0), sequence(2, ids, ids[:2] * 1.0, 1.0)))
    plan = plan_batch(batch, None, 100, CPU)
    assert [micro.input_ids.shape for micro in plan.mini_batches[0].micro_batches] == [(1, 3)]


def test_a_batch_without_any_trainable_token_has_an_empty_plan() -> None:
    batch = TrainBatch((sequence(2, torch.arange(3), torch.tensor([math.nan]), 1.0),))
    plan = plan_batch(batch, None, 100, CPU)
    assert [len(mini.tokens) for mini in plan.mini_batches] == [0]
    assert plan.padding_share == 0


def test_every_token_is_in_exactly_one_micro_batch_of_its_mini_batch() -> None:
    batch = synthetic_batch(7, 3)
    plan = plan_batch(batch, 2, 80, CPU)
    assert len(plan.mini_batches) == 4
    assert sorted(torch.cat([mini.tokens for mini in plan.mini_batches]).tolist()) == list(range(len(batch.tokens)))
    for number, mini in enumerate(plan.mini_batches):
        owners = batch.tokens.sequence[mini.tokens].unique().tolist()
        assert {batch.sequences[owner].group // 2 for owner in owners} == {number}


def test_micro_batches_stay_within_the_token_limit_and_pad_little() -> None:
    rng = random.Random(0)
    lengths = [rng.randint(1, 400) for _ in range(500)]
    cuts = cut_rows(lengths, 4096)
    assert sorted(row for cut in cuts for row in cut) == list(range(500))
    padded = [len(cut) * max(lengths[row] for row in cut) for cut in cuts]
    assert max(padded) <= 4096
    assert 1 - sum(lengths) / sum(padded) < 0.1


def test_a_row_longer_than_the_limit_is_a_micro_batch_of_its_own() -> None:
    assert cut_rows([5, 50, 5], 10) == [[1], [0, 2]]


def test_the_cut_depends_on_lengths_only() -> None:
    assert cut_rows([3, 3, 3, 3], 6) == [[0, 1], [2, 3]]


def test_entropy_is_that_of_the_distribution() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0, -math.inf]])[:, :3]
    expected = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(entropies(logits), expected)


def test_the_gap_is_measured_over_all_tokens() -> None:
    old, rollout = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.0])
    gap = log_prob_gap(old, rollout)
    assert gap.mean_abs == pytest.approx(0.25)
    assert gap.max_abs == pytest.approx(0.5)
    assert gap.k3 == pytest.approx((math.exp(0.5) - 1.5) / 2)
    assert log_prob_gap(old[:0], rollout[:0]) == (0.0, 0.0, 0.0)
