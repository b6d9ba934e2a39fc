"""Keys that do nothing in the mode the rest of the configuration chose. Called by `RunConfig`.

Promise: a value that a person set takes effect, or is refused naming what it needs. A default is never refused, nor are
the settings of a part that has a switch of its own (`enable`, `use_kl_loss`, validation files): people turn those off
and on by one override, and the record of the run shows both.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from .routing import RoutingMethod

if TYPE_CHECKING:
    from .root import RunConfig


class Mode(NamedTuple):
    """`keys` work only while `chosen` holds."""

    keys: tuple[str, ...]
    chosen: Callable[["RunConfig"], bool]
    needs: str
    """How a person chooses it."""


def _agentic(*names: str) -> tuple[str, ...]:
    return tuple(f"psrl.agentic_rl.{name}" for name in names)


def _routing(*names: str) -> tuple[str, ...]:
    return tuple(f"psrl.rollout_coordination.routing_strategy.{name}" for name in names)


def _cache_aware(*names: str) -> tuple[str, ...]:
    return _routing(*(f"cache_aware_policy.{name}" for name in names))


def _method(config: "RunConfig") -> RoutingMethod:
    return config.psrl.rollout_coordination.routing_strategy.method


_ROLLOUT = "psrl.rollout_coordination"
_SYNC = f"{_ROLLOUT}.sync_and_mig_strategy"
MODES = (
    Mode(
        _routing("delta_throughput_threshold"),
        lambda config: _method(config).by_throughput,
        _routing("method=throughput_optimal")[0],
    ),
    Mode(
        _routing("request_budget"),
        lambda config: _method(config) is RoutingMethod.THROUGHPUT_OPTIMAL_WITH_BUDGET,
        _routing("method=throughput_optimal_with_budget")[0],
    ),
    Mode(
        _cache_aware(
            "cache_threshold",
            "balance_abs_threshold",
            "balance_rel_threshold",
            "balance_token_usage_threshold",
            "overload_token_usage_threshold",
            "max_tree_size",
            "block_size",
        ),
        lambda config: _method(config).by_prefix,
        _routing("method=cache_aware")[0],
    ),
    Mode(
        _cache_aware("kv_capacity_threshold"),
        lambda config: _method(config) is RoutingMethod.CACHE_AWARE_V1,
        _routing("method=cache_aware_v1")[0],
    ),
    Mode(
        ("algorithm.rollout_correction.rollout_is_threshold",),
        lambda config: config.algorithm.rollout_correction.rollout_is is not None,
        "algorithm.rollout_correction.rollout_is=token",
    ),
    Mode(
        ("algorithm.norm_adv_by_std_in_grpo",),
        lambda config: config.algorithm.adv_estimator == "grpo",
        "algorithm.adv_estimator=grpo",
    ),
    Mode(
        ("algorithm.filter_groups.metric",),
        lambda config: config.psrl.group_post_process.name == "dynamic_sampling_filter",
        "psrl.group_post_process.name=dynamic_sampling_filter",
    ),
    Mode(
        _agentic("agent", "agent_command", "agent_timeout_s", "max_concurrent_agents", "retry_limit", "batch_agg_mode"),
        lambda config: config.psrl.agentic_rl.agent_loop == "session",
        "psrl.agentic_rl.agent_loop=session",
    ),
    Mode(
        _agentic(
            "environment",
            "environment_kwargs",
            "max_turns",
            "max_turn_tokens",
            "step_timeout_s",
            "step_max_attempts",
            "trajectory_timeout_s",
        ),
        lambda config: config.psrl.agentic_rl.agent_loop == "multi_turn",
        "psrl.agentic_rl.agent_loop=multi_turn",
    ),
    Mode(
        _agentic(
            "tools",
            "code_runner",
            "mcp_servers",
            "tool_timeout_s",
            "max_parallel_calls",
            "max_tool_response_length",
            "tool_response_truncate_side",
        ),
        lambda config: config.psrl.agentic_rl.environment == "tools",
        "psrl.agentic_rl.environment=tools",
    ),
    Mode(
        (f"{_ROLLOUT}.partial_rollout.interrupt",),
        lambda config: config.psrl.rollout_coordination.partial_rollout.enable,
        f"{_ROLLOUT}.partial_rollout.enable=true",
    ),
    Mode(
        tuple(f"{_SYNC}.sync.{name}" for name in ("indicator", "check_req_before_sync", "max_wait_s")),
        lambda config: config.psrl.rollout_coordination.sync_and_mig_strategy.method == "status_based",
        f"{_SYNC}.method=status_based",
    ),
    Mode(
        (f"{_SYNC}.sync.threshold",),
        lambda config: config.psrl.rollout_coordination.sync_and_mig_strategy.has_threshold,
        f"{_SYNC}.method=status_based and a sync.indicator other than hypothesis_test",
    ),
    Mode(("data.seed",), lambda config: config.data.shuffle, "data.shuffle=true"),
    Mode(("reward.coalesce",), lambda config: not config.reward.waits_for_group, "reward.scope=trajectory"),
    Mode(
        ("reward.processes", "reward.memory_gb"),
        lambda config: config.reward.isolation != "thread",
        "reward.isolation=process",
    ),
    Mode(("reward.max_concurrency",), lambda config: config.reward.isolation != "process", "reward.isolation=thread"),
)


class Idle(NamedTuple):
    """A key that was set without effect."""

    key: str
    value: Any
    needs: str


def without_effect(config: "RunConfig") -> Iterator[str]:
    """One line per key that was set without effect."""
    for idle in idle_keys(config):
        yield f"{idle.key}={idle.value} has no effect; allowed: together with {idle.needs}, or leave it out"


def idle_keys(config: "RunConfig") -> Iterator[Idle]:
    for mode in MODES:
        if mode.chosen(config):
            continue
        for key in mode.keys:
            value, default = _value_and_default(config, key)
            if value != default:
                yield Idle(key, value, mode.needs)


def _value_and_default(config: Any, key: str) -> tuple[Any, Any]:
    *sections, name = key.split(".")
    for section in sections:
        config = getattr(config, section)
    return getattr(config, name), type(config).model_fields[name].get_default()
