"""`psrl config import` as a person calls it."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from psrl.schemas.config import load_config
from psrl.workers.cli.commands import app

KEYS = Path(__file__).parent / "keys"
GRPO = r"""#!/usr/bin/env bash
set -x
# GRPO on grade-school maths, one node; don't forget to download the model
MODEL_PATH=${MODEL_PATH:-"$HOME/models/Qwen2.5-3B-Instruct"}
train_prompts=512
n=8

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    algorithm.use_kl_in_reward=False \
    algorithm.kl_ctrl.kl_coef=0.001 \
    data.train_files="['$HOME/data/gsm8k/train.parquet']" \
    data.val_files=$HOME/data/gsm8k/test.parquet \
    data.train_batch_size=${train_prompts} \
    data.max_prompt_length=1024 \
    data.max_response_length=$((1024 * 16)) \
    data.filter_overlong_prompts=True \
    data.truncation='error' \
    data.shuffle=False data.seed=42 \
    actor_rollout_ref.model.path="${MODEL_PATH}" \
    actor_rollout_ref.model.use_remove_padding=True \
    +actor_rollout_ref.model.override_config.attention_dropout=0. \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.05 \
    actor_rollout_ref.actor.ppo_mini_batch_size=$((train_prompts / 4)) \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=${n} \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 \
    algorithm.filter_groups.metric=acc \
    custom_reward_function.path=rewards/gsm8k.py \
    custom_reward_function.name=score \
    +custom_reward_function.reward_kwargs.mode=strict +custom_reward_function.reward_kwargs.weight=0.5 \
    trainer.logger=['console','wandb'] \
    trainer.project_name='gsm8k' trainer.experiment_name="grpo-n${n}" \
    trainer.n_gpus_per_node=1 trainer.nnodes=1 \
    trainer.save_freq=20 trainer.test_freq=0 \
    trainer.total_training_steps=400 $@ 2>&1 | tee "grpo-n${n}.log"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("MODEL_PATH", raising=False)
    return tmp_path


def imported(text: str, *arguments: str, name: str = "run.sh") -> Result:
    Path(name).write_text(text)
    return CliRunner().invoke(app, ["config", "import", name, *arguments])


def test_a_typical_script_becomes_a_configuration_that_train_takes(here: Path) -> None:
    result = imported(GRPO, "--out", "run.yaml")
    assert result.exit_code == 0, result.output
    config = load_config(Path("run.yaml"))
    assert config.psrl.staleness_buffer_entries == 512
    assert config.psrl.rollout_n == 8
    assert config.data.train_files == ("/home/me/data/gsm8k/train.parquet",)
    assert config.data.max_response_length == 16384
    assert config.actor.ppo_mini_batch_size == 128
    assert config.actor.optim.lr == 1e-6
    assert config.actor.optim.lr_warmup_steps == 20
    assert (config.actor.clip_ratio_low, config.actor.clip_ratio_high) == (0.2, 0.28)
    assert config.actor.use_kl_loss
    assert config.model.path == "/home/me/models/Qwen2.5-3B-Instruct"
    assert config.reward.function == "rewards/gsm8k.py:score"
    assert config.reward.kwargs == {"mode": "strict", "weight": 0.5}
    assert (config.trainer.total_training_steps, config.trainer.test_freq) == (400, -1)


def test_it_says_one_line_about_each_key(here: Path) -> None:
    told = imported(GRPO, "--out", "run.yaml").stdout
    keys = [
        word.lstrip("+").partition("=")[0] for word in GRPO.split() if "." in word.partition("=")[0] and "=" in word
    ]
    assert len(keys) > 35
    for key in keys:
        assert [line for line in told.splitlines() if f" {key}=" in line[:120]], key
    assert "taken over        trainer.project_name=gsm8k\n" in told
    assert (
        "renamed           actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.05 -> actor.optim.lr_warmup_steps=20: "
        "0.05 of 400 steps\n" in told
    )
    assert "not supported yet actor_rollout_ref.rollout.gpu_memory_utilization=0.6: a share of the GPU's memory" in told
    assert told.splitlines()[-1].startswith(f"{len(keys)} keys: ")


def test_a_key_that_another_makes_idle_is_left_out_and_said(here: Path) -> None:
    result = imported(GRPO, "--out", "run.yaml")
    assert "not needed here   data.seed=42: it has no effect without data.shuffle=true" in result.stdout
    assert "not needed here   algorithm.filter_groups.metric=acc: it has no effect without psrl.group" in result.stdout


def test_a_key_of_ours_that_is_idle_is_refused_as_everywhere(here: Path) -> None:
    result = imported(GRPO, "reward.function=a:b", "data.seed=7")
    assert result.exit_code == 1
    assert "to do: data.seed=7 has no effect; allowed: together with data.shuffle=true" in result.stderr


def test_a_micro_batch_grows_to_hold_a_sequence(here: Path) -> None:
    result = imported(GRPO, "--out", "run.yaml")
    assert (
        "added             actor.ppo_max_token_len_per_gpu=17408: a micro-batch has to hold the longest"
        in result.stdout
    )


def test_the_file_says_where_each_value_came_from_and_what_is_missing(here: Path) -> None:
    imported(GRPO, "--out", "run.yaml")
    text = Path("run.yaml").read_text()
    assert text.startswith("# Made by `psrl config import run.sh`.")
    assert "  rollout_n: 8  # actor_rollout_ref.rollout.n\n" in text
    assert "  precision: bf16  # actor_rollout_ref.actor.fsdp_config.dtype, veRL's default\n" in text
    assert "#   trainer.logger=[console, wandb]: not supported yet, wandb and the like" in text


def test_printed_it_can_be_piped_into_a_file(here: Path) -> None:
    result = imported(GRPO)
    assert yaml.safe_load(result.stdout)["psrl"]["rollout_n"] == 8
    assert "taken over        trainer.project_name=gsm8k" in result.stderr


def test_what_is_pasted_is_read_from_stdin(here: Path) -> None:
    result = CliRunner().invoke(app, ["config", "import", "-"], input=GRPO)
    assert result.exit_code == 0, result.output
    assert yaml.safe_load(result.stdout)["data"]["max_prompt_length"] == 1024


def test_what_is_missing_is_named_and_the_rest_is_written(here: Path) -> None:
    result = imported("data.train_files=t.parquet\nactor_rollout_ref.rollout.n=4\n", "--out", "run.yaml", name="a.txt")
    assert result.exit_code == 1
    assert "to do: model.path is required and empty\n" in result.stderr
    assert Path("run.yaml").exists()
    again = imported("data.train_files=t.parquet\nactor_rollout_ref.model.path=m\nactor_rollout_ref.rollout.n=4\n")
    assert "to do: reward.function is required and empty: veRL chose a scorer by the data source" in again.stderr


def test_keys_of_ours_behind_the_file_complete_it(here: Path) -> None:
    text = "data.train_files=t.parquet\nactor_rollout_ref.model.path=m\nactor_rollout_ref.rollout.n=4\n"
    result = imported(text, "reward.function=my:score", "psrl.staleness=2", "--out", "run.yaml")
    assert result.exit_code == 0, result.output
    assert load_config(Path("run.yaml")).psrl.staleness == 2
    refused = imported(text, "reward.function=my:score", "psrl.stalenes=2")
    assert refused.exit_code == 1
    assert "to do: psrl: unknown key 'stalenes' (did you mean 'staleness'?)" in refused.stderr


def test_a_file_is_written_over_only_when_told_to(here: Path) -> None:
    Path("run.yaml").write_text("mine")
    result = imported(GRPO, "--out", "run.yaml")
    assert result.exit_code == 1
    assert "--out run.yaml exists; allowed: another name, or --force" in result.stderr
    assert Path("run.yaml").read_text() == "mine"
    assert imported(GRPO, "--out", "run.yaml", "--force").exit_code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo", "run.sh has no key of veRL's or PSRL's"),
        ("run a.b='x", "line 1: ' is never closed"),
        ("run model_args.lr=1 b.c=2", "has no key of veRL's or PSRL's, only model_args.lr, b.c; allowed: their YAML"),
        (
            "A=0123456789\n" + "A=$A$A$A$A$A$A$A$A$A$A\n" * 9 + "run a.b=$A",
            "line 6: a word of 1000002 characters; allowed: at most",
        ),
        ("run a.b=" + "${A:-" * 3000 + "}" * 3000, "run.sh cannot be read: its values are nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(text: str, said: str, here: Path) -> None:
    result = imported(text)
    assert result.exit_code == 1
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_file_that_is_not_there_is_named(here: Path) -> None:
    result = CliRunner().invoke(app, ["config", "import", "none.sh"])
    assert result.exit_code == 1
    assert "none.sh: No such file or directory" in result.stderr


def test_what_psrl_does_by_default_asks_for_nothing_that_is_missing_here(here: Path) -> None:
    """But for its estimator, which needs a critic."""
    ours = ("model.path=m", "reward.function=a:b", "psrl.rollout_n=2")
    result = imported((KEYS / "psrl_defaults.yaml").read_text(), *ours, name="psrl.yaml")
    assert result.exit_code == 0, result.output
    missing = [line.split()[3].partition("=")[0] for line in result.stderr.splitlines() if "not supported yet " in line]
    assert missing == ["algorithm.gamma", "algorithm.lam", "algorithm.adv_estimator"]
    assert "unknown" not in result.stderr


DAPO = """
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    data.train_files=train.parquet data.max_response_length=5120 data.train_batch_size=8 \\
    actor_rollout_ref.model.path=/m actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.ppo_mini_batch_size=8 \\
    algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc \\
    custom_reward_function.path=rewards/dapo.py +custom_reward_function.reward_kwargs.mode=strict \\
    reward_model.reward_manager=dapo \\
    +reward_model.reward_kwargs.overlong_buffer_cfg.enable=True \\
    +reward_model.reward_kwargs.overlong_buffer_cfg.len=3072 \\
    +reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=0.5 \\
    +reward_model.reward_kwargs.max_resp_len=4096
"""


def test_dapos_penalty_for_long_answers_becomes_a_reward_beside_the_function(here: Path) -> None:
    result = imported(DAPO, "--out", "run.yaml")
    assert result.exit_code == 0, result.output
    config = load_config(Path("run.yaml"))
    main, penalty = config.reward.parts
    assert (main.name, main.weight) == ("main", 1.0)
    assert (main.limits.function, main.limits.kwargs) == ("rewards/dapo.py:compute_score", {"mode": "strict"})
    assert (penalty.limits.function, penalty.weight) == ("overlong", 1.0)
    assert penalty.limits.kwargs == {"max_response_length": 4096, "buffer_length": 3072, "factor": 0.5}
    assert config.algorithm.filter_groups.metric == "main/acc"
    said = result.stdout
    assert "custom_reward_function.path=rewards/dapo.py -> reward.functions.main.function=rewards/dapo.py:comp" in said
    assert "not supported" not in said


def test_the_penalty_alone_is_no_reward(here: Path) -> None:
    without = DAPO.replace("custom_reward_function.path=rewards/dapo.py", "")
    told = imported(without.replace("+custom_reward_function.reward_kwargs.mode=strict", ""), "--out", "run.yaml")
    assert "to do: reward.function is required and empty" in told.stderr


def test_a_penalty_that_no_manager_heeds_is_left_out_and_said(here: Path) -> None:
    told = imported(DAPO.replace("reward_manager=dapo", "reward_manager=naive"), "--out", "run.yaml").stdout
    assert load_config(Path("run.yaml")).reward.function == "rewards/dapo.py:compute_score"
    assert "only the reward manager dapo heeds it, and that is not chosen" in told
