"""Faults reported from comparable systems, as cases for the pure parts (docs/field-reports.md has the whole list)."""

import heapq
import math
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from psrl.activities.store.codec import decode_logprobs, encode_logprobs
from psrl.activities.training.batch import SampledSequence, TrainBatch
from psrl.activities.training.loss import importance_weights
from psrl.schemas.config import RunConfig, Section, load_config
from psrl.schemas.config.sync_and_mig import SYNC_KEY
from psrl.schemas.config.without_effect import MODES
from psrl.schemas.errors import ConfigError
from psrl.schemas.ids import GroupId, Version, training_group
from psrl.schemas.messages.rollout import DispatchRoom
from psrl.workflows.ledger import GroupState, Ledger
from psrl.workflows.run.dispatch import groups_still_needed, plan_wave

MINIMAL = ("model.path=m", "data.train_files=[t.jsonl]", "reward.function=a:b", "psrl.rollout_n=4")

# --- staleness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eta", range(4))
def test_a_group_is_accepted_exactly_while_it_is_at_most_eta_versions_old(eta: int) -> None:
    """32, slime PR#2278: a deterministic rule, accept iff current - group <= N."""
    for current in range(6):
        ledger = Ledger(staleness=eta, batch_groups=2, offered_groups=2)
        for version in range(current):
            fill(ledger, Version(version), range(2 * version, 2 * version + 2))
            ledger.publish(Version(version + 1))
        accepted = {group for group in range(6) if ledger.free(Version(group)) > 0}
        assert accepted == {group for group in range(6) if 0 <= current - group <= eta}


def fill(ledger: Ledger, version: Version, numbers: range) -> None:
    """One batch, taken."""
    groups = [training_group(number) for number in numbers]
    ledger.reserve(version, groups)
    for group in groups:
        ledger.occupy(group)
    assert ledger.consume().taken == tuple(groups)


@pytest.mark.parametrize("eta", [1, 2, 3])
def test_sampling_that_is_paced_wastes_no_rollout_and_uses_the_whole_bound(eta: int) -> None:
    """36, tinker-cookbook PR#822: 0 dropped, max age = eta."""
    ages, drawn, dropped = simulate(eta, steps=60, batch=8, seed=eta)
    assert dropped == 0
    assert drawn == ages.total() == 60 * 8
    assert max(ages) == eta


def simulate(eta: int, steps: int, batch: int, seed: int) -> tuple[Counter[int], int, int]:
    """A run in simulated time by the rules of the workflow: always room at the newest version, rollouts with a long
    tail, training as long as a typical rollout. Gives groups by age, groups drawn, groups dropped."""
    rng = random.Random(seed)
    ledger = Ledger(staleness=eta, batch_groups=batch, offered_groups=batch)
    events: list[tuple[float, int, GroupId | None]] = []  # Of a group: it is complete. Of None: a step is trained.
    ages: Counter[int] = Counter()
    now, drawn, dropped, training = 0.0, 0, 0, False
    while ledger.version < steps:
        rooms = [DispatchRoom(version=ledger.version, groups=10 * batch)]
        while wave := plan_wave(ledger, rooms, groups_still_needed(ledger, steps), limit=32):
            groups = [training_group(drawn + i) for i in range(wave.groups)]
            ledger.reserve(wave.version, groups)
            for group in groups:
                heapq.heappush(events, (now + rng.lognormvariate(0, 1), drawn, group))
                drawn += 1
        tags = {group: ledger.tag(group) for group in ledger.live_groups()}
        if not training and (taken := ledger.consume()).taken is not None:
            ages.update(taken.buffer - tag for group in taken.taken or () if (tag := tags[group]) is not None)
            dropped += len(taken.dropped)
            training = True
            heapq.heappush(events, (now + 1.0, -1, None))
        now, _, finished = heapq.heappop(events)
        if finished is None:
            training = False
            ledger.publish(Version(ledger.version + 1))
        elif ledger.state(finished) is GroupState.RESERVED:
            ledger.occupy(finished)
    return ages, drawn, dropped


# --- log-probs -------------------------------------------------------------------------------------------------------


def test_a_log_prob_that_the_engine_did_not_give_has_ratio_one_and_is_counted() -> None:
    """45, trl#6166, PR#6693, PR#6868: [-0.1, null, -0.3], from the engine through the store to the weights."""
    rollout = torch.tensor(decode_logprobs(encode_logprobs([-0.1, None, -0.3])))
    old = torch.tensor([-0.2, -0.5, -0.1])
    weights = importance_weights(old, rollout, 2.0)
    assert weights[1] == 1.0
    torch.testing.assert_close(weights[[0, 2]], torch.tensor([math.exp(-0.1), math.exp(0.2)]))
    versions, sampled = torch.zeros(3, dtype=torch.int32), torch.ones(3, dtype=torch.bool)
    sequence = SampledSequence(0, 0, 1, torch.arange(4), rollout, 1.0, versions, sampled)
    tokens = TrainBatch((sequence,)).tokens
    assert (tokens.untrainable, tokens.position.tolist()) == (1, [1, 3])


@pytest.mark.parametrize("gap", [math.log(0.7), 0.005])
def test_a_gap_in_every_token_of_a_long_answer_gives_finite_weights_and_masks_nothing(gap: float) -> None:
    """46, trl PR#7120: 0.7^300 and 300 x 0.005. Weights belong to tokens here, so that no length can multiply them; the
    sequence level with its gate and share of masked sequences is not built."""
    weights = importance_weights(torch.full((300,), gap), torch.zeros(300), 2.0)
    torch.testing.assert_close(weights, torch.full((300,), math.exp(gap)))
    assert 1 / weights.min() < 2


# --- configuration ---------------------------------------------------------------------------------------------------


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [*MINIMAL, *overrides])
    return str(caught.value)


def test_a_mini_batch_larger_than_the_batch_is_refused_naming_both() -> None:
    """116, SkyRL PR#229: sizes that would be truncated to 0. (Trainer ranks are refused as long as there is one.)"""
    text = refusal("psrl.staleness_buffer_entries=4", "actor.ppo_mini_batch_size=8")
    assert "actor.ppo_mini_batch_size=8 does not divide psrl.staleness_buffer_entries=4; allowed: 1, 2, 4" in text


def keys(section: type[Section], prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Every key with its path, and whether it is a section."""
    for name, field in section.model_fields.items():
        inner = field.annotation
        nested = isinstance(inner, type) and issubclass(inner, Section)
        yield prefix + name, nested
        if nested and isinstance(inner, type):
            yield from keys(inner, f"{prefix}{name}.")


def test_a_mistyped_key_is_refused_with_the_right_name_wherever_it_stands() -> None:
    """118, AReaL#710: an unknown key anywhere."""
    for key, nested in keys(RunConfig):
        *sections, name = key.split(".")
        wrong = ".".join([*sections, f"{name}x"])
        text = refusal(f"{wrong}={{}}" if nested else f"{wrong}=1")
        assert f"unknown key '{name}x' (did you mean '{name}'?)" in text


def test_a_part_is_turned_off_by_one_override_whatever_its_settings_are() -> None:
    switched = ["actor.use_kl_loss=false", "actor.kl_loss_coef=0.5", "data.val_files=[]", "trainer.test_freq=3"]
    assert load_config(None, [*MINIMAL, *switched]).trainer.test_freq == 3


AGENTIC: dict[str, Any] = {
    "agent": "a:b",
    "agent_command": "[a]",
    "agent_timeout_s": 5.0,
    "batch_agg_mode": "request",
    "code_runner": "{wall_s: 5}",
    "environment": "a:B",
    "environment_kwargs": "{a: 1}",
    "max_concurrent_agents": 5,
    "max_parallel_calls": 5,
    "max_tool_response_length": 5,
    "max_turn_tokens": 5,
    "max_turns": 5,
    "mcp_servers": "{a: {command: b}}",
    "retry_limit": 5,
    "step_max_attempts": 5,
    "step_timeout_s": 5.0,
    "tool_response_truncate_side": "left",
    "tool_timeout_s": 5.0,
    "tools": "[a:b]",
    "trajectory_timeout_s": 5.0,
}
ROUTING = "psrl.rollout_coordination.routing_strategy"
PARTIAL = "psrl.rollout_coordination.partial_rollout"
CACHE_AWARE: dict[str, Any] = {
    "cache_threshold": 0.5,
    "balance_abs_threshold": 5,
    "balance_rel_threshold": 5.0,
    "balance_token_usage_threshold": 0.5,
    "overload_token_usage_threshold": 0.5,
    "max_tree_size": 5,
    "block_size": 5,
    "kv_capacity_threshold": 0.5,
}
CHANGED: dict[str, Any] = {
    "algorithm.filter_groups.metric": "acc",
    "algorithm.norm_adv_by_std_in_grpo": "false",
    "algorithm.rollout_correction.rollout_is_threshold": 3.0,
    "data.seed": 5,
    "reward.coalesce": "false",
    "reward.max_concurrency": 5,
    "reward.memory_gb": 5.0,
    "reward.processes": 5,
    f"{ROUTING}.delta_throughput_threshold": 0.25,
    f"{ROUTING}.request_budget": 5,
    **{f"{ROUTING}.cache_aware_policy.{key}": value for key, value in CACHE_AWARE.items()},
    **{f"psrl.agentic_rl.{key}": value for key, value in AGENTIC.items()},
    f"{PARTIAL}.interrupt": "in_place",
    f"{SYNC_KEY}.sync.check_req_before_sync": "false",
    f"{SYNC_KEY}.sync.indicator": "throughput",
    f"{SYNC_KEY}.sync.max_wait_s": 5.0,
    f"{SYNC_KEY}.sync.threshold": 5.0,
}
OTHER_MODE = {
    f"{PARTIAL}.enable=true": f"{PARTIAL}.enable=false",
    "algorithm.adv_estimator=grpo": "algorithm.adv_estimator=rloo",
    "data.shuffle=true": "data.shuffle=false",
    "reward.isolation=process": "reward.isolation=thread",
    "reward.isolation=thread": "reward.isolation=process",
    "reward.scope=trajectory": "reward.scope=group",
}
"""Where the default is the mode in which the keys work."""
BESIDE = {
    f"{SYNC_KEY}.method=status_based": [f"{SYNC_KEY}.sync.threshold=3"],
    f"{ROUTING}.method=throughput_optimal": [f"{ROUTING}.cost_model_path=cost.json"],
    f"{ROUTING}.method=throughput_optimal_with_budget": [f"{ROUTING}.cost_model_path=cost.json"],
    "psrl.agentic_rl.agent_loop=session": ["psrl.agentic_rl.agent=a:b"],
    "psrl.agentic_rl.agent_loop=multi_turn": ["psrl.agentic_rl.environment=a:B"],
    "psrl.agentic_rl.environment=tools": ["psrl.agentic_rl.agent_loop=multi_turn", "psrl.agentic_rl.tools=[a:b]"],
}
"""What the mode itself asks for."""


@pytest.mark.parametrize(("key", "needs"), [(key, mode.needs) for mode in MODES for key in mode.keys])
def test_a_key_that_would_do_nothing_in_the_chosen_mode_is_refused_and_works_in_the_other(key: str, needs: str) -> None:
    """119, SkyRL#2246: a documented flag does nothing in one mode."""
    override = f"{key}={CHANGED[key]}"
    other = [OTHER_MODE[needs]] if needs in OTHER_MODE else []
    text = refusal(override, *other)
    assert f"{key}=" in text
    assert f"has no effect; allowed: together with {needs}" in text
    # An agent is a function or a program.
    mode, _, _ = needs.partition(" and ")
    beside = [] if key == "psrl.agentic_rl.agent_command" else BESIDE.get(mode, [])
    assert value_of(key, [mode, *beside, override]) != value_of(key, [])


def value_of(key: str, overrides: list[str]) -> Any:
    value: Any = load_config(None, [*MINIMAL, *overrides])
    for name in key.split("."):
        value = getattr(value, name)
    return value
