"""Configuration: what is refused, and how the refusal reads."""

from pathlib import Path

import pytest

from psrl.schemas.config import RunConfig, load_config
from psrl.schemas.errors import ConfigError
from psrl.schemas.messages.run import RolloutSettings

MINIMAL = ("model.path=m", "data.train_files=[t.jsonl]", "reward.function=a:b", "psrl.rollout_n=4")


def refusal(*overrides: str, file: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(file, [*MINIMAL, *overrides])
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("psrl.stalenes=1", "psrl: unknown key 'stalenes' (did you mean 'staleness'?)"),
        ("psrll.staleness=1", "unknown key 'psrll' (did you mean 'psrl'?)"),
        ("trainer.total_steps=1", "unknown key 'total_steps' (did you mean 'total_training_steps'?)"),
        ("trainer.epochs=1", "unknown key 'epochs' (did you mean 'total_epochs'?)"),
        ("trainer.total_epoch=1", "unknown key 'total_epoch' (did you mean 'total_epochs'?)"),
        ("trainer.--=1", "unknown key '--'; known here"),
        ("actor.optim.learning_rate=1", "actor.optim: unknown key 'learning_rate'"),
        ("psrl.staleness=-1", "psrl.staleness=-1: input should be greater than or equal to 0"),
        ("psrl.group_timeout_s=18001", "psrl.group_timeout_s=18001: input should be less than or equal to 18000"),
        ("psrl.staleness=19", "may hold 10240 groups at once; allowed: (staleness + 1) * groups up to 10000"),
        ("psrl.deployment.elastic_rm.enable=true", "psrl.deployment: key 'elastic_rm' is not taken: not supported yet"),
        ("psrl.rollout_n=two", "psrl.rollout_n='two': input should be a valid integer"),
        (
            "actor.ppo_mini_batch_size=3",
            "actor.ppo_mini_batch_size=3 does not divide psrl.staleness_buffer_entries=512",
        ),
        ("psrl.rollout_n=1", "psrl.rollout_n=1 with group-normalised advantages"),
        ("rollout.max_model_len=100", "data.max_prompt_length + data.max_response_length = 1536 is longer"),
        ("model.path=''", "model.path is required and empty"),
        ("data.train_files=[]", "data.train_files is required and empty"),
        ("algorithm.adv_estimator=gae", "algorithm.adv_estimator='gae': input should be 'grpo' or 'rloo'"),
        ("actor.optim.betas=[0.9,1.0]", "actor.optim.betas=(0.9, 1.0); allowed: two numbers in [0, 1)"),
        ("psrl.group_post_process.enable=true", "psrl.group_post_process.name=null while enabled; allowed: dynamic"),
        ("actor.policy_loss.loss_mode=ppo", "loss_mode='ppo': input should be 'vanilla' or 'gspo'"),
        (
            "actor.policy_loss.loss_mode=gspo",
            "actor.loss_agg_mode=token-mean with actor.policy_loss.loss_mode=gspo, whose objective is a mean over "
            "sequences; allowed: seq-mean-token-mean",
        ),
        ("rollout.top_p=0.9", "rollout.top_p=0.9 samples from a part of the distribution"),
        ("rollout.top_p=0.9", "allowed: 1 (off)"),
        ("rollout.top_k=20", "rollout.top_k=20 samples from a part of the distribution"),
        ("rollout.top_k=20", "allowed: -1 or 0 (off)"),
        (
            "psrl.group_post_process.name=dynamic_sampling",
            "psrl.group_post_process.name='dynamic_sampling' is not a filter "
            "(did you mean 'dynamic_sampling_filter'?); allowed: dynamic_sampling_filter, no_filter, "
            "or package.module:function",
        ),
        ("rollout.temperature=0.005", "rollout.temperature=0.005: input should be greater than or equal to 0.01"),
        ("rollout.val.temperature=0.005", "allowed: 0 (greedy), or at least 0.01"),
        ("trainer.seed=20240115093000", "trainer.seed=20240115093000: input should be less than 4294967296"),
        ("rollout.top_p=0", "rollout.top_p=0: input should be greater than 0"),
        ("staleness", "override 'staleness' is not of the form key=value"),
        ("reward.timeout_s=inf", "reward.timeout_s='inf': input should be a finite number"),
        ("actor.optim.lr=nan", "actor.optim.lr='nan': input should be a finite number"),
        ("actor.optim.betas=[0.9,inf]", "input should be a finite number"),
        (
            "psrl.deployment.start_timeout_s=1e9",
            "=1000000000.0: input should be at most 31536000, a year",
        ),
        ("psrl.rollout_n=3000000000", "psrl.rollout_n=3000000000: input should be at most 2147483647"),
        ("data.seed=99999999999999999999", "input should be at most 9223372036854775807"),
        ("trainer.seed=-1", "trainer.seed=-1: input should be greater than or equal to 0"),
        ("reward.kwargs.weight=.nan", "reward.kwargs={'weight': nan}: input should be a finite number"),
        ("data.train_files={a: 1}", "data.train_files"),
        ("data.train_files=['']", "an entry is empty"),
        ("actor.optim.betas=0.9", "actor.optim.betas=0.9: input should be a list"),
        ("+trainer.seed=1", "override '+trainer.seed=1': +, ++ and ~ are Hydra's; allowed: key=value"),
        ("~trainer.seed", "are Hydra's; allowed: key=value"),
        ("actor_rollout_ref.rollout.n=4", "'actor_rollout_ref' (veRL's; `psrl config import FILE` translates it)"),
    ],
)
def test_a_fault_names_the_key_the_value_and_what_was_allowed(override: str, said: str) -> None:
    assert said in refusal(override)


def test_a_rule_that_names_its_keys_has_no_other_name_before_it() -> None:
    assert refusal("psrl.staleness=19").startswith("psrl.staleness=19 with 512 groups")
    assert refusal("psrl.group_post_process.enable=true").startswith("psrl.group_post_process.name=null while enabled")


@pytest.mark.parametrize(
    ("key", "value", "least"),
    [("redundant_global_batch_size", 100, 512), ("redundant_rollout_n", 2, 4)],
)
def test_redundancy_only_adds(key: str, value: int, least: int) -> None:
    path = "psrl.rollout_coordination.redundant_rollout"
    text = refusal(f"{path}.enable=true", f"{path}.{key}={value}")
    assert f"{path}.{key}={value} is below" in text
    assert str(least) in text


def test_a_group_of_one_is_allowed_when_advantages_are_not_normalised() -> None:
    config = load_config(None, [*MINIMAL, "psrl.rollout_n=1", "algorithm.norm_adv_by_std_in_grpo=false"])
    assert config.psrl.rollout_n == 1


def test_an_estimator_that_compares_needs_somebody_to_compare_with() -> None:
    text = refusal("psrl.rollout_n=1", "algorithm.adv_estimator=rloo")
    assert "psrl.rollout_n=1 with algorithm.adv_estimator=rloo" in text
    assert "algorithm.norm_adv_by_std_in_grpo=False has no effect" in refusal(
        "algorithm.adv_estimator=rloo", "algorithm.norm_adv_by_std_in_grpo=false"
    )


@pytest.mark.parametrize("legal", ["actor.optim.lr=0", "rollout.top_k=0", "algorithm.mask_truncated=true"])
def test_what_an_experiment_may_ask_for(legal: str) -> None:
    load_config(None, [*MINIMAL, legal])


def test_a_filter_that_would_drop_every_group_is_refused() -> None:
    one = ["psrl.rollout_n=1", "algorithm.norm_adv_by_std_in_grpo=false", "psrl.group_post_process.enable=true"]
    said = "name=dynamic_sampling_filter with psrl.rollout_n=1 would drop every group"
    assert said in refusal(*one, "psrl.group_post_process.name=dynamic_sampling_filter")
    assert load_config(None, [*MINIMAL, *one, "psrl.group_post_process.name=no_filter"])


def test_a_scoring_task_has_time_for_every_attempt_of_the_users_functions() -> None:
    limits = ["reward.timeout_s=7", "reward.max_attempts=3", "psrl.group_post_process.enable=true"]
    threads = [*MINIMAL, *limits, "reward.isolation=thread"]
    built_in = load_config(None, [*threads, "psrl.group_post_process.name=no_filter"])
    plug_in = load_config(None, [*threads, "psrl.group_post_process.name=module:keep"])
    assert (built_in.scoring_timeout_s, plug_in.scoring_timeout_s) == (21 + 30, 42 + 30)
    processes = [*MINIMAL, *limits, "psrl.group_post_process.name=no_filter", "reward.processes=2"]
    # Two and two of four answers, and a process may have to be started for each.
    assert load_config(None, [*processes, "psrl.rollout_n=4"]).scoring_timeout_s == 2 * 3 * (7 + 120) + 30


def test_validation_samples_as_it_is_told_and_training_does_not() -> None:
    config = load_config(None, [*MINIMAL, "rollout.val.top_p=0.9", "rollout.val.top_k=20"])
    validation, training = RolloutSettings.of_validation(config).sampling, RolloutSettings.of(config).sampling
    assert (validation.top_p, validation.top_k) == (0.9, 20)
    assert (training.top_p, training.top_k) == (1.0, -1)


def test_a_text_that_no_store_takes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text('trainer: {project_name: "a\\0b"}\nreward: {kwargs: {of: {deep: ["\\ud800"]}}}\n')
    told = refusal(file=file)
    assert told.count("input should have no NUL and no half of a character") == 2


def test_an_override_of_another_kind_than_the_files_is_named(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("data: {train_files: [t]}")
    with pytest.raises(ConfigError, match=r"overrides data\.train_files\.x=1 do not fit what the file has"):
        load_config(file, ["data.train_files.x=1"])


def test_every_fault_of_a_file_is_told_at_once() -> None:
    text = refusal("psrl.staleness=-1", "rollout.temperature=-2", "trainer.seeed=1")
    assert len(text.splitlines()) == 3


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("psrl: {staleness: 3, rollout_n: 2}\nmodel: {path: from-file}\n")
    config = load_config(file, ["psrl.staleness=1", "data.train_files=[t]", "reward.function=a:b"])
    assert (config.psrl.staleness, config.psrl.rollout_n, config.model.path) == (1, 2, "from-file")


def test_a_missing_or_unreadable_file_is_named(tmp_path: Path) -> None:
    assert "nothing.yaml does not exist" in refusal(file=tmp_path / "nothing.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("psrl: [unclosed")
    assert "broken.yaml" in refusal(file=broken)


def test_a_configuration_survives_the_way_through_the_store() -> None:
    config = load_config(None, list(MINIMAL))
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config
