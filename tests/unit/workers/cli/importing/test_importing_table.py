"""The table of `psrl config import`: it knows every key, and what it says of one is so."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from psrl.schemas.config.yaml_text import read_yaml
from psrl.workers.cli.importing import target
from psrl.workers.cli.importing.given import leaves
from psrl.workers.cli.importing.name import spelling
from psrl.workers.cli.importing.page import document
from psrl.workers.cli.importing.row import Asked, Converted, NotHere, Nothing, Row, Verdict
from psrl.workers.cli.importing.table import SECTIONS, find, known_keys

KEYS = Path(__file__).parent / "keys"
"""`psrl_reference.txt`: the keys of PSRL's configuration reference. `psrl_defaults.yaml`: its defaults. `verl.txt`: the
keys of every trainer of veRL 0.4.1, 0.5.0, 0.7.0 and 0.9.1."""
ROOT = Path(__file__).parents[5]
ROWS = [row for rows in SECTIONS.values() for row in rows]

SAMPLES: dict[str, list[tuple[Any, tuple[Any, ...]]]] = {
    "psrl.ps_mode": [("cpu_ref", ("file",))],
    "psrl.agentic_rl.thinking_template": [("multi_traj", ("fork",))],
    "actor_rollout_ref.rollout.multi_turn.enable": [(True, ("multi_turn", "tools"))],
    "actor_rollout_ref.rollout.multi_turn.max_turns": [(5, (5,))],
    "actor_rollout_ref.rollout.agent.env.step_timeout": [(30, (30.0,))],
    "psrl.rollout_coordination.routing_strategy.max_concurrent_seqs_per_instance": [(64, (64,))],
    "data.train_files": [("a.parquet", (["a.parquet"],)), (["a", "b"], (["a", "b"],))],
    "data.val_files": [("a.parquet", (["a.parquet"],))],
    "data.val_max_samples": [(100, (100,))],
    "actor_rollout_ref.model.path": [("Qwen/Qwen3-4B", ("Qwen/Qwen3-4B",))],
    "actor_rollout_ref.actor.clip_ratio": [(0.3, (0.3, 0.3))],
    "actor_rollout_ref.actor.use_token_level_loss": [(True, ("token-mean",)), (False, ("seq-mean-token-mean",))],
    "actor_rollout_ref.actor.tis_imp_ratio_cap": [(4, ("token", 4.0))],
    "actor_rollout_ref.actor.optim.lr_warmup_steps": [(7, (7,))],
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": [(0.1, (20,)), ("0.015", (3,))],
    "actor_rollout_ref.actor.fsdp_config.dtype": [("bfloat16", ("bf16",)), ("float32", ("fp32",))],
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype": [("bf16", ("bf16",))],
    "actor_rollout_ref.rollout.top_p": [(1, (1.0,))],
    "actor_rollout_ref.rollout.top_k": [(-1, (-1,)), (0, (0,))],
    "actor_rollout_ref.rollout.val_kwargs.do_sample": [(False, (0.0,))],
    "actor_rollout_ref.rollout.dtype": [("bfloat16", ("bfloat16",)), ("fp32", ("float32",))],
    "actor_rollout_ref.rollout.max_num_seqs": [(256, (256,))],
    "algorithm.filter_groups.enable": [(True, (True, "dynamic_sampling_filter"))],
    "algorithm.filter_groups.metric": [("acc", ("acc",)), ("reward_score", ("score",))],
    "algorithm.rollout_is": [(True, ("token",))],
    "custom_reward_function.path": [
        ("rewards/gsm8k.py", ("rewards/gsm8k.py:my_score",)),
        ("/home/me/my-gsm8k.py", ("/home/me/my-gsm8k.py:my_score",)),
        ("pkg://my.rewards", ("my.rewards:my_score",)),
    ],
    "reward.custom_reward_function.path": [("gsm8k.py", ("gsm8k.py:compute_score",))],
    "reward.managers.*.reward_fn.*.path": [("gsm8k.py", ("gsm8k.py:compute_score",))],
    "custom_reward_function.reward_kwargs.*": [("half", ({"*": "half", "mode": {"strict": True}},))],
    "reward.custom_reward_function.reward_kwargs.*": [(1, ({"*": 1},))],
    "reward.managers.*.reward_fn.*.reward_kwargs.*": [(1, ({"*": 1},))],
    "actor_rollout_ref.model.custom_chat_template": [("my.jinja", ("my.jinja",))],
    "trainer.save_freq": [(20, (20,)), (0, (-1,)), (-1, (-1,))],
    "trainer.test_freq": [(5, (5,)), (0, (-1,))],
}
"""Of each row that converts: a value of theirs, and ours for each target."""
WHERE_NULL = {
    "algorithm.rollout_correction.rollout_is": "token",
    "psrl.group_post_process.name": "no_filter",
    "trainer.total_training_steps": 200,
}
PENALTIES = (
    "custom_reward_function.overlong_buffer",
    "reward_model.overlong_buffer",
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "reward.reward_kwargs.overlong_buffer_cfg",
    "reward.managers.dapo.reward_kwargs.overlong_buffer_cfg",
)
PENALTY = {"function": "overlong", "kwargs": {"max_response_length": 512, "buffer_length": 64, "factor": 1.0}}
SAMPLES |= {f"{prefix}.enable": [(True, ({"overlong": PENALTY},))] for prefix in PENALTIES}
OTHERS = {
    **{f"{prefix}.len": 64 for prefix in PENALTIES},
    "reward_model.reward_manager": "dapo",
    "data.max_response_length": 512,
    "trainer.total_training_steps": 200,
    "custom_reward_function.name": "my_score",
    "custom_reward_function.reward_kwargs.mode.strict": True,
}

REFUSED: list[tuple[str, Any, str]] = [
    ("psrl.ps_mode", "nixl_cpu", "RDMA"),
    ("actor_rollout_ref.rollout.top_p", 0.9, "would bias every probability ratio"),
    ("actor_rollout_ref.rollout.top_k", 20, "would bias every probability ratio"),
    ("actor_rollout_ref.model.custom_chat_template", "{{ messages }}", "write it into a file that ends in .jinja"),
    ("actor_rollout_ref.actor.optim.lr_warmup_steps_ratio", "half", "it is no number"),
]
NOTHING: list[tuple[str, Any]] = [
    ("psrl.rollout_coordination.routing_strategy.max_concurrent_seqs_per_instance", 0),
    ("data.val_max_samples", -1),
    ("actor_rollout_ref.actor.tis_imp_ratio_cap", -1),
    ("actor_rollout_ref.actor.optim.lr_warmup_steps", -1),
    ("actor_rollout_ref.actor.optim.lr_warmup_steps_ratio", 0.0),
    ("actor_rollout_ref.rollout.val_kwargs.do_sample", True),
    ("algorithm.filter_groups.enable", False),
    ("algorithm.rollout_is", False),
]


def keys_of(name: str) -> list[str]:
    text = (KEYS / name).read_text()
    return [key for key, _ in leaves(read_yaml(Path(name), text)[0])] if name.endswith(".yaml") else text.split()


@pytest.mark.parametrize("name", ["psrl_reference.txt", "psrl_defaults.yaml", "verl.txt"])
def test_every_key_has_a_row(name: str) -> None:
    keys = keys_of(name)
    assert len(keys) > 180
    assert [key for key in keys if find(spelling(key)) is None] == []


def test_no_key_has_two_rows() -> None:
    assert [key for key, count in Counter(row.key for row in ROWS).items() if count > 1] == []


def test_a_row_without_a_star_stands_for_itself() -> None:
    assert [key for key in known_keys() if find(key) is None or find(key).key != key] == []  # type: ignore[union-attr]


def test_the_nearest_group_speaks_for_a_key_without_a_row() -> None:
    row = find("reward_model.reward_kwargs.overlong_buffer_cfg.len")
    assert row is not None
    assert row.key == "reward_model.reward_kwargs.overlong_buffer_cfg.*"
    assert find("psrl.no_such_key") is None


def test_what_is_taken_over_or_renamed_exists_here() -> None:
    named = [(row.key, key) for row in ROWS for key in row.targets]
    assert [pair for pair in named if pair[1] not in target.fields()] == []
    assert [row.key for row in ROWS if (row.targets == (row.key,)) is not (row.verdict is Verdict.TAKEN)] == []


def test_what_is_not_says_why() -> None:
    without = [row for row in ROWS if not row.targets]
    assert {row.verdict for row in without} == {Verdict.NOT_NEEDED, Verdict.NOT_SUPPORTED}
    assert [row.key for row in without if not row.why] == []
    assert [row.key for row in without if row.switch and find(row.switch.key) is None] == []


def test_a_value_that_is_not_converted_is_one_that_our_key_takes() -> None:
    plain = [(row.key, key) for row in ROWS if row.convert is None for key in row.targets]
    assert len(plain) > 40
    for theirs, key in plain:
        value = WHERE_NULL.get(key, target.default(key))
        assert target.fitting(key, value) == value, theirs


@pytest.mark.parametrize("row", [row for row in ROWS if row.convert], ids=lambda row: row.key)
def test_a_converted_value_is_one_that_our_key_takes(row: Row) -> None:
    assert row.convert is not None
    for theirs, ours in SAMPLES[row.key]:
        converted = row.convert(Asked(row.key, theirs, OTHERS))
        assert tuple(map(target.fitting, row.targets, converted.values)) == ours


def test_every_conversion_has_a_sample() -> None:
    assert sorted(row.key for row in ROWS if row.convert is not None) == sorted(SAMPLES)


def converted(key: str, value: Any) -> Converted:
    row = find(key)
    assert row is not None
    assert row.convert is not None
    return row.convert(Asked(key, value, {}))


@pytest.mark.parametrize(("key", "value", "said"), REFUSED)
def test_a_value_without_a_counterpart_says_why(key: str, value: Any, said: str) -> None:
    with pytest.raises(NotHere, match=said):
        converted(key, value)


@pytest.mark.parametrize(("key", "value"), NOTHING)
def test_a_value_that_sets_nothing_leaves_our_default(key: str, value: Any) -> None:
    with pytest.raises(Nothing):
        converted(key, value)


def test_the_committed_page_is_that_of_the_table() -> None:
    page = (ROOT / "docs" / "coming-from-verl.md").read_text()
    assert page == document(), "run: psrl config docs --import --out docs/coming-from-verl.md"
