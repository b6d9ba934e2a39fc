"""Files of theirs, read and translated: each key gets its verdict, and what two of them claim has one winner."""

from pathlib import Path
from typing import Any

import pytest

from psrl.schemas.errors import ConfigError
from psrl.workers.cli.importing.given import Given
from psrl.workers.cli.importing.reading import read
from psrl.workers.cli.importing.row import Verdict
from psrl.workers.cli.importing.translate import Line, Translation, repeated, translate

ROLLOUT = "actor_rollout_ref.rollout"


def given(text: str, name: str = "pasted.txt") -> dict[str, Any]:
    return {one.key: one.value for one in read(Path(name), text, {}).given}


def translated(*pairs: str, ours: dict[str, Any] | None = None) -> Translation:
    return translate(read(Path("pasted.txt"), "run " + " ".join(pairs), {}).given, ours or {})


def line(translation: Translation, key: str) -> Line:
    (found,) = [one for one in translation.lines if one.given.key == key]
    return found


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-6", 1e-6),
        ("True", True),
        ("null", None),
        ("None", None),
        ("0.", 0.0),
        ("", ""),
        ('\'["a","b"]\'', ["a", "b"]),
        ("[a, b]", ["a", "b"]),
        ("'\"8\"'", "8"),
        ("2024-01-01", "2024-01-01"),
        ("http://host:80/x", "http://host:80/x"),
        ("'a: b'", "a: b"),
        ("'{x:1,y:{z:a/b}}'", None),
    ],
)
def test_a_value_is_read_as_hydra_reads_it(written: str, value: Any) -> None:
    if value is None and written.startswith("'{"):
        assert given(f"run a.b={written}") == {"a.b.x": 1, "a.b.y.z": "a/b"}
    else:
        assert given(f"run a.b={written}") == {"a.b": value}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("trainer: {total_epochs: 3, logger: [console]}", "any.yaml"),
        ("trainer:\n  total_epochs: 3\n  logger: [console]\n", "pasted.txt"),
        ('{"trainer": {"total_epochs": 3, "logger": ["console"]}}', "config.json"),
        ("- trainer.total_epochs=3\n- trainer.logger=[console]\n", "overrides.yaml"),
        ("trainer.total_epochs=3\ntrainer.logger=[console]\n", "pasted.txt"),
        ('"trainer.total_epochs=3",\n"trainer.logger=[console]",\n', "launch.txt"),
        ("srun bash -c \"cd /verl && python3 x.py trainer.total_epochs=3 trainer.logger=['console']\"", "run.sh"),
        (
            '{"cells": [{"source": ["!run main_ppo \\\\\\n", " trainer.total_epochs=3 trainer.logger=[console]"]}]}',
            "a.json",
        ),
        ("python3 -m verl.trainer.main_ppo \\\n trainer.total_epochs=3 \\\n +trainer.logger=['console'] $@", "run.sh"),
    ],
)
def test_every_form_says_the_same(text: str, name: str) -> None:
    assert given(text, name) == {"trainer.total_epochs": 3, "trainer.logger": ["console"]}


def test_a_key_may_have_the_value_of_another() -> None:
    text = (
        "data: {max_prompt_length: 7}\nactor_rollout_ref:\n  rollout:\n    prompt_length: ${data.max_prompt_length}\n"
    )
    assert given(text)[f"{ROLLOUT}.prompt_length"] == 7
    text = "gen_actor_rollout_ref: {model: '${oc.select:train_actor_rollout_ref.model}'}\n"
    assert given(text + "train_actor_rollout_ref: {model: {path: m}}\n")["gen_actor_rollout_ref.model.path"] == "m"


def test_a_value_that_leads_nowhere_is_not_readable() -> None:
    translation = translate(read(Path("a.yaml"), "trainer:\n  total_epochs: ${nobody.knows}\n", {}).given, {})
    found = line(translation, "trainer.total_epochs")
    assert (found.verdict, found.given.line) == (Verdict.UNREADABLE, 2)
    assert "Interpolation key 'nobody.knows' not found" in found.said


@pytest.mark.parametrize("text", ["", "echo hello\n", "set -x\npython train.py --lr 1e-6\n"])
def test_a_file_without_a_key_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="has no key of veRL's or PSRL's"):
        read(Path("run.sh"), text, {})


def test_what_was_not_read_is_said() -> None:
    assert "the files in `defaults` are not read" in read(Path("a.yaml"), "defaults: [a]\nb: 1", {}).notes[0]
    notes = read(Path("run.sh"), "run --config-name=mine a.b=1\nfor i in 1 2; do echo; done", {}).notes
    assert [note.split(",")[0] for note in notes] == ["the base configuration mine is not read", "run.sh"]
    assert read(Path("run.sh"), "run --config-name='ppo_trainer' a.b=1", {}).notes == ()


def test_megatrons_base_configuration_asks_for_megatron() -> None:
    text = "run --config-name='ppo_megatron_trainer' trainer.total_epochs=1"
    found = line(translate(read(Path("run.sh"), text, {}).given, {}), "model_engine")
    assert found.verdict is Verdict.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("pairs", "verdict", "said"),
    [
        (["trainer.total_epochs=3"], Verdict.TAKEN, ""),
        ([f"{ROLLOUT}.n=8"], Verdict.RENAMED, ""),
        ([f"{ROLLOUT}.name=vllm"], Verdict.NOT_NEEDED, "it is always so here"),
        ([f"{ROLLOUT}.name=sglang"], Verdict.NOT_SUPPORTED, "an engine other than vLLM"),
        (["trainer.val_only=False"], Verdict.NOT_NEEDED, "it is off"),
        (["trainer.device=cuda"], Verdict.NOT_NEEDED, "the trainer takes the GPU that it finds"),
        (["psrl.lmcache.chunk_size=256"], Verdict.NOT_NEEDED, "it counts only with psrl.lmcache.enable, which is off"),
        (["psrl.lmcache.chunk_size=256", "psrl.lmcache.enable=True"], Verdict.NOT_SUPPORTED, "keeping the KV cache"),
        (["psrl.lmcache.disk_path=null", "psrl.lmcache.enable=True"], Verdict.NOT_NEEDED, "not set"),
        (["data.seed=null"], Verdict.NOT_NEEDED, "not set"),
        (["trainer.totl_epochs=3"], Verdict.UNKNOWN, "(did you mean 'trainer.total_epochs'?)"),
        ([f"gen_{ROLLOUT}.temprature=1"], Verdict.UNKNOWN, f"(did you mean '{ROLLOUT}.temperature'?)"),
        (["algorithm.adv_estimator=gae"], Verdict.NOT_SUPPORTED, "input should be 'grpo' or 'rloo'"),
        (
            ["trainer.total_epochs=three"],
            Verdict.NOT_SUPPORTED,
            "trainer.total_epochs: input should be a valid integer",
        ),
        (["trainer.total_epochs=$(nproc)"], Verdict.UNREADABLE, "$(nproc)"),
        (["trainer.experiment_name=$(date)"], Verdict.NOT_NEEDED, "`psrl train --run NAME`"),
        (["actor_rollout_ref.actor.megatron.seed=42"], Verdict.NOT_SUPPORTED, "training with Megatron"),
        (["trainer.logger=[console,tensorboard]"], Verdict.NOT_NEEDED, "`psrl report` has every number"),
        (["trainer.logger=[console,wandb]"], Verdict.NOT_SUPPORTED, "wandb and the like"),
        (["data.reward_model_dicts.0.reward_fn=f"], Verdict.NOT_SUPPORTED, "several rewards"),
        (["psrl.flush_tokens=64"], Verdict.TAKEN, ""),
        (["reward.reward_loop_worker.max_concurrency_per_worker=16"], Verdict.RENAMED, ""),
    ],
)
def test_a_key_has_one_verdict_that_depends_on_its_value(pairs: list[str], verdict: Verdict, said: str) -> None:
    found = line(translated(*pairs), pairs[0].partition("=")[0])
    assert found.verdict is verdict
    assert said in found.said


@pytest.mark.parametrize(
    ("pairs", "winner", "key", "value"),
    [
        (["data.train_batch_size=128", "psrl.staleness_buffer_entries=64"], 1, "psrl.staleness_buffer_entries", 64),
        ([f"{ROLLOUT}.n=5", "psrl.rollout_n=8"], 1, "psrl.rollout_n", 8),
        ([f"gen_{ROLLOUT}.temperature=0.7", f"train_{ROLLOUT}.temperature=1.0"], 0, "rollout.temperature", 0.7),
        ([f"gen_{ROLLOUT}.val_kwargs.n=1", f"train_{ROLLOUT}.val_kwargs.n=8"], 1, "rollout.val.n", 8),
        (
            ["actor_rollout_ref.actor.clip_ratio=0.3", "actor_rollout_ref.actor.clip_ratio_high=0.28"],
            1,
            "actor.clip_ratio_high",
            0.28,
        ),
        (
            [f"{ROLLOUT}.val_kwargs.do_sample=False", f"{ROLLOUT}.val_kwargs.temperature=0.6"],
            1,
            "rollout.val.temperature",
            0.6,
        ),
    ],
)
def test_of_two_keys_for_one_thing_one_counts_and_the_other_is_told(
    pairs: list[str], winner: int, key: str, value: Any
) -> None:
    for order in (pairs, pairs[::-1]):
        translation = translated(*order)
        assert translation.values[key] == value
        won, lost = pairs[winner].partition("=")[0], pairs[1 - winner].partition("=")[0]
        assert line(translation, won).verdict in (Verdict.TAKEN, Verdict.RENAMED)
        assert line(translation, lost).verdict is Verdict.CONFLICT
        assert line(translation, lost).said == f"{key}={value} comes from {won}"


def test_two_keys_that_say_the_same_do_not_disagree() -> None:
    translation = translated("data.train_batch_size=64", "psrl.staleness_buffer_entries=64")
    assert line(translation, "data.train_batch_size").verdict is Verdict.RENAMED


def test_ours_win_over_the_file() -> None:
    translation = translated("psrl.rollout_n=8", ours={"psrl.rollout_n": "4"})
    assert translation.values["psrl.rollout_n"] == 4
    assert line(translation, "psrl.rollout_n").said == "psrl.rollout_n=4 was given behind the file"


def test_what_ours_say_counts_for_what_the_file_says_of_it() -> None:
    ratio = "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1"
    assert translated(ratio, ours={"trainer.total_training_steps": 200}).values["actor.optim.lr_warmup_steps"] == 20


@pytest.mark.parametrize("key", ["psrl.ps_mode", "actor_rollout_ref.rollout.dtype", "trainer.save_freq", "data.seed"])
@pytest.mark.parametrize("value", ["[a,b]", "{a:1}", "[[1]]", "x"])
def test_a_value_of_a_kind_that_nobody_expects_is_told(key: str, value: str) -> None:
    verdicts = {one.verdict for one in translated(f"{key}={value}").lines if one.given.key.startswith(key)}
    assert verdicts <= {Verdict.NOT_SUPPORTED, Verdict.UNKNOWN}


def test_a_key_that_is_taken_out_is_as_if_it_had_not_been_there() -> None:
    translation = translated("trainer.total_epochs=3", "+trainer.save_freq=5", "~trainer.total_epochs", "~trainer")
    assert not [key for key in translation.values if key.startswith("trainer.")]
    assert line(translation, "trainer.total_epochs").verdict is Verdict.NOT_NEEDED


def test_a_key_that_is_given_twice_counts_as_hydra_counts_it() -> None:
    twice = [Given("a.b", 1, 3), Given("a.b", 2, 9), Given("c.d", 1, 4), Given("c.d", 1, 5)]
    assert list(repeated(twice)) == ["a.b is given on lines 3 and 9: 2 counts, not 1"]
    assert translated("trainer.total_epochs=1", "++trainer.total_epochs=2").values["trainer.total_epochs"] == 2


def test_verls_defaults_are_written_where_ours_differ() -> None:
    values = translated("trainer.total_epochs=1").values
    assert values["psrl.staleness_buffer_entries"] == 1024
    assert values["actor.ppo_mini_batch_size"] == 256
    assert values["data.max_prompt_length"] == 512
    assert values["actor.precision"] == "bf16"
    assert "algorithm.adv_estimator" not in values
    of_psrl = translated("psrl.staleness=1", "psrl.staleness_buffer_entries=64", "algorithm.adv_estimator=grpo").values
    assert of_psrl["psrl.staleness_buffer_entries"] == 64
    assert "actor.ppo_mini_batch_size" not in of_psrl


def test_a_file_of_ours_gets_none_of_verls_defaults() -> None:
    pairs = ("model.path=m", "reward.function=a:b", "data.train_files=t")
    assert set(translated(*pairs).values) == {"model.path", "reward.function", "data.train_files"}
    assert "psrl.staleness_buffer_entries" in translated(*pairs, "trainer.nnodes=1").values


def test_an_estimator_that_verl_takes_by_default_is_told() -> None:
    found = line(translated("trainer.total_epochs=1"), "algorithm.adv_estimator")
    assert (found.verdict, found.given.implied) == (Verdict.NOT_SUPPORTED, True)


def test_a_variable_that_nobody_sets_stays_where_a_text_may_have_it() -> None:
    translation = translated("data.train_files=[$DATA/t.parquet]", "trainer.total_epochs=$EPOCHS")
    assert translation.values["data.train_files"] == ["${oc.env:DATA}/t.parquet"]
    assert line(translation, "trainer.total_epochs").said == (
        "trainer.total_epochs: ${oc.env:EPOCHS} is not set in the environment"
    )
