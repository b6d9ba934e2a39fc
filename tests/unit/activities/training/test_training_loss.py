"""The policy loss and its gradients, against a plain computation token by token in float64."""

import copy
import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from transformers import Qwen2ForCausalLM

from psrl.activities.training.algorithms import gspo, vanilla
from psrl.activities.training.algorithms.algorithm import Tokens
from psrl.activities.training.algorithms.registry import ESTIMATORS, LOSSES, algorithm_of
from psrl.activities.training.batch import TrainBatch
from psrl.activities.training.loss import aggregation_units, aggregation_weights, importance_weights, k3
from psrl.schemas.config import ActorSection, AdvantageEstimator, LossAggregation, LossMode, RunConfig
from psrl.schemas.errors import ConfigError, FatalError
from psrl.schemas.messages.training import UpdateStats
from psrl.workers.trainer.state import TrainerState, make_optimizer
from psrl.workers.trainer.step import OldLogProbs, advantages, old_log_probs, update
from psrl.workers.trainer.world import World
from tests.support.tiny_model import tiny_model, tiny_tokenizer
from tests.support.training import run_configuration, synthetic_batch

Gradients = list[torch.Tensor]


class Recorder(torch.optim.SGD):
    """Keeps the gradients of every step and changes nothing, so that all steps see the same weights."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=1.0)
        self.steps: list[Gradients] = []

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps.append([p.grad.clone() for group in self.param_groups for p in group["params"]])


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    """Gentle, so that the rounding of float32 stays far below what is compared."""
    return tiny_model(tiny_tokenizer(), spread=0.1)


@pytest.fixture(scope="module")
def earlier(model: Qwen2ForCausalLM) -> Qwen2ForCausalLM:
    """Another policy: old log-probs come from it, so that ratios leave the clip range."""
    other = copy.deepcopy(model)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(5)
        for parameter in other.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return other


def configuration(**actor: Any) -> RunConfig:
    rollout_is = actor.pop("rollout_is", None)
    return run_configuration(
        actor={"grad_clip": 1e9, "clip_ratio_low": 0.1, "clip_ratio_high": 0.3, **actor},
        algorithm={"rollout_correction": {"rollout_is": rollout_is}},
        rollout={"temperature": 0.8, "dtype": "float32"},
    )


def trained(
    config: RunConfig, model: Qwen2ForCausalLM, old: Qwen2ForCausalLM, batch: TrainBatch
) -> tuple[UpdateStats, list[Gradients], OldLogProbs]:
    """Our own computation: old log-probs from `old`, which is also the reference; update of `model`."""
    before = TrainerState(config, old, Recorder(old.parameters()), 0)
    log_probs = old_log_probs(before, batch, old if config.actor.use_kl_loss else None)
    state = TrainerState(config, model, Recorder(model.parameters()), 0)
    stats = update(state, batch, log_probs, advantages(config, batch), World())
    return stats, state.optimizer.steps, log_probs


def naive(
    config: RunConfig, model: Qwen2ForCausalLM, old: Qwen2ForCausalLM, batch: TrainBatch
) -> list[tuple[float, Gradients]]:
    """Loss and gradients of each mini-batch, written down from the definitions, one token at a time."""
    actor, temperature = config.actor, config.rollout.temperature
    model, old = copy.deepcopy(model).double(), copy.deepcopy(old).double()
    span = actor.ppo_mini_batch_size or batch.groups
    results = []
    for first in range(0, batch.groups, span):
        per_sequence: list[list[torch.Tensor]] = []
        for sequence in batch.sequences:
            if not first <= sequence.group < first + span or sequence.reward is None:
                continue
            peers = [s.reward for s in batch.sequences if s.group == sequence.group and s.reward is not None]
            mean = sum(peers) / len(peers)
            variance = sum((r - mean) ** 2 for r in peers) / (len(peers) - 1) if len(peers) > 1 else 0.0
            advantage = (sequence.reward - mean) / (math.sqrt(variance) + 1e-6)
            new_rows = torch.log_softmax(model(input_ids=sequence.ids[None]).logits[0] / temperature, -1)
            with torch.no_grad():
                old_rows = torch.log_softmax(old(input_ids=sequence.ids[None]).logits[0] / temperature, -1)
            losses = []
            for i, rollout in enumerate(sequence.rollout.tolist()):
                if not math.isfinite(rollout):
                    continue
                place = sequence.prompt_tokens + i
                token = int(sequence.ids[place])
                new_lp, old_lp = new_rows[place - 1, token], old_rows[place - 1, token]
                ratio = torch.exp(new_lp - old_lp)
                low, high = 1 - actor.clip_ratio_low, 1 + actor.clip_ratio_high
                loss = -torch.minimum(ratio * advantage, torch.clip(ratio, low, high) * advantage)
                if config.algorithm.rollout_correction.rollout_is is not None:
                    weight = min(
                        math.exp(float(old_lp) - rollout), config.algorithm.rollout_correction.rollout_is_threshold
                    )
                    loss = loss * weight
                if actor.use_kl_loss:
                    difference = old_lp - new_lp
                    loss = loss + actor.kl_loss_coef * (torch.exp(difference) - difference - 1)
                losses.append(loss)
            if losses:
                per_sequence.append(losses)
        if actor.loss_agg_mode is LossAggregation.TOKEN_MEAN:
            flat = list(itertools.chain.from_iterable(per_sequence))
            total = torch.stack(flat).sum() / len(flat)
        elif actor.loss_agg_mode is LossAggregation.SEQ_MEAN_TOKEN_MEAN:
            total = torch.stack([torch.stack(one).mean() for one in per_sequence]).mean()
        else:
            total = torch.stack([torch.stack(one).sum() for one in per_sequence]).mean()
        model.zero_grad()
        total.backward()
        results.append((float(total.detach()), [p.grad.clone() for p in model.parameters()]))
    return results


@pytest.mark.parametrize(
    "actor",
    [
        {},
        {"ppo_mini_batch_size": 2, "ppo_max_token_len_per_gpu": 64},
        {"loss_agg_mode": "seq-mean-token-mean", "ppo_max_token_len_per_gpu": 100},
        {"loss_agg_mode": "seq-mean-token-sum", "rollout_is": "token"},
        {"use_kl_loss": True, "kl_loss_coef": 0.3, "rollout_is": "token", "ppo_max_token_len_per_gpu": 40},
    ],
    ids=["token-mean", "mini-batches", "seq-mean-token-mean", "seq-mean-token-sum", "kl-and-correction"],
)
def test_loss_and_gradients_equal_a_plain_computation(
    model: Qwen2ForCausalLM, earlier: Qwen2ForCausalLM, actor: dict[str, Any]
) -> None:
    batch = synthetic_batch(
        4, 3, max_response=8, missing_share=0.1, reward=lambda rng: None if rng.random() < 0.1 else rng.random()
    )
    config = configuration(**actor)
    stats, steps, _ = trained(config, model, earlier, batch)
    expected = naive(config, model, earlier, batch)
    assert len(steps) == len(expected) == stats.optimizer_steps
    assert stats.loss == pytest.approx(sum(loss for loss, _ in expected) / len(expected), abs=1e-6)
    assert 0.1 < stats.clip_share < 0.9
    for gradients, (_, wanted) in zip(steps, expected, strict=True):
        largest = max(float(gradient.abs().max()) for gradient in wanted)
        for gradient, want in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(gradient.double(), want, atol=1e-6 * max(1.0, largest), rtol=0)


@pytest.mark.parametrize("mode", list(LossAggregation))
def test_the_cut_into_micro_batches_changes_nothing(
    model: Qwen2ForCausalLM, earlier: Qwen2ForCausalLM, mode: LossAggregation
) -> None:
    batch = synthetic_batch(4, 4)
    whole, fine = (
        trained(configuration(loss_agg_mode=mode, ppo_max_token_len_per_gpu=tokens), model, earlier, batch)
        for tokens in (10_000, 33)
    )
    assert whole[0].loss == pytest.approx(fine[0].loss, abs=1e-6)
    assert whole[0].ratio_mean == pytest.approx(fine[0].ratio_mean, abs=1e-6)
    assert whole[0].grad_norm == pytest.approx(fine[0].grad_norm, rel=1e-6)
    for a, b in zip(whole[1][0], fine[1][0], strict=True):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=0)


def test_the_first_pass_over_fresh_log_probs_has_ratio_one_and_clips_nothing(model: Qwen2ForCausalLM) -> None:
    stats, _, log_probs = trained(configuration(), model, model, synthetic_batch(4, 4))
    assert stats.ratio_mean == pytest.approx(1.0, abs=1e-6)
    assert stats.clip_share == 0
    assert stats.is_weight_mean == 1.0
    assert 0 < stats.entropy < math.log(128)
    assert log_probs.stats.tokens == len(synthetic_batch(4, 4).tokens)


def test_every_epoch_passes_over_all_mini_batches(model: Qwen2ForCausalLM) -> None:
    config = configuration(ppo_epochs=3, ppo_mini_batch_size=2)
    stats, steps, _ = trained(config, model, model, synthetic_batch(4, 4))
    assert stats.optimizer_steps == len(steps) == 6


def test_a_batch_without_trainable_token_makes_no_step(model: Qwen2ForCausalLM) -> None:
    stats, steps, _ = trained(configuration(), model, model, synthetic_batch(4, 4, missing_share=1.0))
    assert steps == []
    assert (stats.optimizer_steps, stats.loss, stats.ratio_mean) == (0, 0.0, 1.0)


def test_a_gradient_that_is_not_finite_stops_the_run_before_the_optimizer_sees_it(model: Qwen2ForCausalLM) -> None:
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.model.norm.weight[0] = math.nan
    with pytest.raises(FatalError, match=r"gradient norm .* version 0 is nan.*actor\.optim\.lr"):
        trained(configuration(), broken, model, synthetic_batch(4, 4))


def test_importance_weights_are_truncated_and_exactly_one_where_the_log_prob_is_missing() -> None:
    # Field report 45.
    old = torch.tensor([-0.2, -0.5, -0.1, -1.0, -1.0])
    rollout = torch.tensor([-0.1, math.nan, -0.3, -3.0, -math.inf])
    weights = importance_weights(old, rollout, 2.0)
    assert weights[1] == 1.0
    assert weights[4] == 1.0
    torch.testing.assert_close(weights[[0, 2, 3]], torch.tensor([math.exp(-0.1), math.exp(0.2), 2.0]))


def test_importance_weights_stay_finite_for_hopeless_gaps() -> None:
    # Field report 46: 0.7^300 and its inverse.
    far = torch.tensor([300 * math.log(0.7), -300 * math.log(0.7)])
    weights = importance_weights(far, torch.zeros(2), 3.0)
    assert weights.isfinite().all()
    assert weights[1] == 3.0


def loss_tokens(new: torch.Tensor, advantage: list[float], sequence: list[int] | None = None) -> Tokens:
    """Old log-probs are 0."""
    owners = torch.tensor(sequence or [0] * len(advantage))
    return Tokens(new, torch.zeros_like(new), torch.tensor(advantage), owners, None, None)


def test_a_clipped_token_has_no_gradient_and_an_unclipped_one_does() -> None:
    new = torch.tensor([0.5, 0.5, -0.5, 0.05], requires_grad=True)
    loss = vanilla.policy_loss(loss_tokens(new, [1.0, -1.0, -1.0, 1.0]), ActorSection())
    loss.loss.sum().backward()
    assert loss.clipped.tolist() == [True, False, True, False]
    assert new.grad is not None
    assert (new.grad != 0).tolist() == [False, True, False, True]


def test_a_sequence_ratio_is_the_geometric_mean_of_its_tokens_and_clips_them_together() -> None:
    """Sequence 4 moved by log 1.1 on average, sequence 7 by log 2 on both tokens, which is outside 1.2."""
    moved = [math.log(1.21), 0.0, math.log(2), math.log(2)]
    new = torch.tensor(moved, requires_grad=True)
    loss = gspo.policy_loss(loss_tokens(new, [2.0, 2.0, 1.0, 1.0], [4, 4, 7, 7]), ActorSection())
    torch.testing.assert_close(loss.ratio, torch.tensor([1.1, 1.1, 2.0, 2.0]))
    torch.testing.assert_close(loss.loss.detach(), torch.tensor([-2.2, -2.2, -1.2, -1.2]))
    assert loss.clipped.tolist() == [False, False, True, True]
    loss.loss.sum().backward()
    assert new.grad is not None
    torch.testing.assert_close(new.grad, torch.tensor([-2.2, -2.2, 0.0, 0.0]))


def test_the_token_form_of_a_sequence_ratio_has_the_gradient_of_the_sequence_objective() -> None:
    """Of mean over sequences of min(s A, clip(s) A) with s = exp(mean(new - old)), differentiated as it stands."""
    owners, advantage = torch.tensor([0, 0, 0, 1]), torch.tensor([0.5, 0.5, 0.5, -1.0])
    new = torch.tensor([0.1, -0.2, 0.15, 0.05], dtype=torch.float64, requires_grad=True)
    tokens = loss_tokens(new, advantage.tolist(), owners.tolist())
    mode = LossAggregation.SEQ_MEAN_TOKEN_MEAN
    shares = torch.ones(4)
    weights = aggregation_weights(owners, shares, mode, aggregation_units(owners, shares, mode))
    (found,) = torch.autograd.grad((weights * gspo.policy_loss(tokens, ActorSection()).loss).sum(), new)
    ratios = torch.stack([new[:3].mean().exp(), new[3:].mean().exp()])
    sequences = torch.tensor([0.5, -1.0])
    objective = torch.minimum(ratios * sequences, ratios.clamp(0.8, 1.2) * sequences).mean()
    (wanted,) = torch.autograd.grad(-objective, new)
    torch.testing.assert_close(found, wanted)


def test_every_name_of_the_configuration_is_registered() -> None:
    assert set(ESTIMATORS) == set(AdvantageEstimator)
    assert set(LOSSES) == set(LossMode)


def test_a_run_trains_with_the_algorithm_that_it_names(model: Qwen2ForCausalLM, earlier: Qwen2ForCausalLM) -> None:
    sequence_mean = {"loss_agg_mode": "seq-mean-token-mean"}
    plain, _, _ = trained(configuration(**sequence_mean), model, earlier, synthetic_batch(4, 4))
    by_sequence = configuration(policy_loss={"loss_mode": "gspo"}, **sequence_mean)
    of_sequences, _, _ = trained(by_sequence, model, earlier, synthetic_batch(4, 4))
    assert of_sequences.loss != pytest.approx(plain.loss, abs=1e-4)
    assert algorithm_of(run_configuration(algorithm={"adv_estimator": "rloo"})).estimator is ESTIMATORS["rloo"]


# --- responses that were cut by their length -----------------------------------------------------------------------


def test_a_masked_truncated_response_trains_no_token_but_its_reward_counts_in_its_group(
    model: Qwen2ForCausalLM,
) -> None:
    batch = synthetic_batch(3, 4)
    cut = dataclasses.replace(batch.sequences[1], truncated=True)
    batch = TrainBatch((batch.sequences[0], cut, *batch.sequences[2:]))
    masked = dataclasses.replace(batch, mask_truncated=True)
    assert set(masked.tokens.sequence.tolist()) == set(range(12)) - {1}
    assert (batch.masked, masked.masked) == (0, 1)
    whole, without = advantages(configuration(), batch), advantages(configuration(), masked)
    torch.testing.assert_close(whole.of_sequences, without.of_sequences)
    _, (gradients,), log_probs = trained(configuration(), model, model, masked)
    assert log_probs.stats.masked_trajectories == 1
    assert log_probs.stats.tokens == len(batch.tokens) - cut.rollout.numel()
    elsewhere = dataclasses.replace(cut, ids=cut.ids.flip(0))
    other = dataclasses.replace(masked, sequences=(batch.sequences[0], elsewhere, *batch.sequences[2:]))
    _, (same,), _ = trained(configuration(), model, model, other)
    for one, two in zip(gradients, same, strict=True):
        torch.testing.assert_close(one, two, atol=0, rtol=0)


def test_a_batch_of_truncated_responses_only_makes_no_step(model: Qwen2ForCausalLM) -> None:
    batch = TrainBatch(tuple(dataclasses.replace(s, truncated=True) for s in synthetic_batch(2, 4).sequences), True)
    stats, steps, _ = trained(configuration(), model, model, batch)
    assert (steps, stats.optimizer_steps) == ([], 0)


def test_k3_is_zero_for_equal_policies_and_positive_otherwise() -> None:
    assert k3(torch.tensor([-1.0]), torch.tensor([-1.0])).item() == 0
    torch.testing.assert_close(k3(torch.tensor([-1.0]), torch.tensor([-1.5])), torch.tensor([math.exp(-0.5) - 0.5]))


def test_aggregation_weights_sum_to_what_each_mode_means() -> None:
    owners = torch.tensor([4, 4, 4, 7])
    expected = {
        LossAggregation.TOKEN_MEAN: [0.25, 0.25, 0.25, 0.25],
        LossAggregation.SEQ_MEAN_TOKEN_MEAN: [1 / 6, 1 / 6, 1 / 6, 1 / 2],
        LossAggregation.SEQ_MEAN_TOKEN_SUM: [1 / 2] * 4,
    }
    shares = torch.ones(4)
    for mode, weights in expected.items():
        found = aggregation_weights(owners, shares, mode, aggregation_units(owners, shares, mode))
        torch.testing.assert_close(found, torch.tensor(weights))


def test_bfloat16_products_leave_master_weights_in_float32_and_publish_what_the_engine_runs(
    model: Qwen2ForCausalLM,
) -> None:
    batch, model = synthetic_batch(4, 4), copy.deepcopy(model)
    exact = old_log_probs(TrainerState(configuration(), model, Recorder(model.parameters()), 0), batch, None)
    config = run_configuration(
        actor={"precision": "bf16", "optim": {"lr": 0.01}}, rollout={"temperature": 0.8, "dtype": "bfloat16"}
    )
    state = TrainerState(config, model, make_optimizer(model, config), 0)
    log_probs = old_log_probs(state, batch, None)
    assert log_probs.old.dtype is torch.float32
    gap = (log_probs.old - exact.old).abs().max()
    assert 0 < gap < 0.1
    stats = update(state, batch, log_probs, advantages(config, batch), World())
    assert stats.optimizer_steps == 1
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {tensor.dtype for tensor in state.published_tensors().values()} == {torch.bfloat16}


def test_a_token_limit_below_the_longest_sequence_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ppo_max_token_len_per_gpu=31 .* = 32; allowed: that or more"):
        run_configuration(actor={"ppo_max_token_len_per_gpu": 31})


def test_more_than_one_rank_is_refused_by_name() -> None:
    assert World.from_environment({}) == World(0, 1)
    with pytest.raises(ConfigError, match="WORLD_SIZE=2"):
        World.from_environment({"WORLD_SIZE": "2", "RANK": "1"})
