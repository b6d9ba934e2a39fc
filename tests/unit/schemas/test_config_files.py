"""Configuration as people write it: files that include others, variables, numbers and switches as text; and where a
fault stands."""

from pathlib import Path

import pytest

from psrl.schemas.config import RunConfig, load_config
from psrl.schemas.errors import ConfigError

LEAST = "model: {path: m}\nreward: {function: 'a:b'}\ndata: {train_files: [t.jsonl]}\npsrl: {rollout_n: 4}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(text: str, *overrides: str, name: str = "run.yaml") -> RunConfig:
    Path(name).write_text(text)
    return load_config(Path(name), overrides)


def refusal(text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(text, *overrides)
    return str(caught.value)


def test_numbers_and_switches_may_be_written_as_text(here: Path) -> None:
    config = loaded(
        LEAST + "actor: {use_kl_loss: 'true', optim: {lr: '1e-6'}}\ntrainer: {seed: '7'}\nrollout: {temperature: 9e-1}"
    )
    assert config.actor.optim.lr == 1e-6
    assert config.actor.use_kl_loss is True
    assert config.trainer.seed == 7
    assert config.rollout.temperature == 0.9


def test_yaml_1_1_takes_a_number_without_a_point_for_text_and_it_is_still_one(here: Path) -> None:
    assert loaded(LEAST + "actor:\n  optim:\n    lr: 1e-6\n").actor.optim.lr == 1e-6


def test_a_single_file_needs_no_list_around_it(here: Path) -> None:
    config = loaded(LEAST, "data.train_files=a.jsonl", "data.val_files=b.jsonl")
    assert (config.data.train_files, config.data.val_files) == (("a.jsonl",), ("b.jsonl",))


def test_a_tilde_is_null(here: Path) -> None:
    assert loaded(LEAST + "trainer: {total_training_steps: ~}").trainer.total_training_steps is None
    assert "trainer.seed=null: input should be a valid integer (run.yaml, line 5)" in refusal(
        LEAST + "trainer: {seed: ~}"
    )


@pytest.mark.parametrize("written", ["$MODELS/qwen", "${MODELS}/qwen", "${oc.env:MODELS}/qwen", "${MODELS:-no}/qwen"])
def test_an_environment_variable_may_be_part_of_a_value(
    written: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELS", "/models")
    assert (
        loaded(LEAST + f"rollout: {{}}\ntrainer: {{project_name: '{written}'}}").trainer.project_name == "/models/qwen"
    )
    assert loaded(LEAST, f"trainer.project_name={written}").trainer.project_name == "/models/qwen"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${NOBODY_SET_THIS:-8}", 8),
        ("${oc.env:NOBODY_SET_THIS,8}", 8),
        ("${psrl.rollout_n}", 4),
    ],
)
def test_a_default_and_another_keys_value_are_converted_like_what_is_written(
    written: str, value: int, here: Path
) -> None:
    assert loaded(LEAST + f"trainer: {{seed: '{written}'}}").trainer.seed == value


def test_a_default_is_taken_as_it_stands(here: Path) -> None:
    text = LEAST + """trainer: {project_name: "${NOBODY_SET_THIS:-~/it's a, (b)}"}"""
    assert loaded(text).trainer.project_name == "~/it's a, (b)"


@pytest.mark.parametrize("written", [r"\$HOME", r"\${HOME}"])
def test_a_backslash_keeps_a_dollar(written: str, here: Path) -> None:
    assert loaded(LEAST + f"trainer: {{project_name: '{written}'}}").trainer.project_name == written[1:]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "$NOBODY_SET_THIS/x",
            "the environment variable NOBODY_SET_THIS is not set; a default is written ${NOBODY_SET_THIS:-default}",
        ),
        (
            "${nobody.set}",
            "there is no key 'nobody.set' whose value it could have; environment variables are in capitals",
        ),
        ("${project_name}", "there is no key 'project_name' whose value it could have"),
        ("${trainer.project_name}", "trainer.project_name=${trainer.project_name}: "),
        ("${odd:1}", "unsupported interpolation type odd"),
        ("???", "a value has to be given in its place"),
    ],
)
def test_what_cannot_be_resolved_is_named_with_its_place(written: str, said: str, here: Path) -> None:
    text = refusal(LEAST + f"trainer:\n  project_name: '{written}'\n")
    assert text.startswith("trainer.project_name=")
    assert said in text
    assert text.endswith("(run.yaml, line 6)")
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "trainer:\n  seed: one",
            "trainer.seed='one': input should be a valid integer, unable to parse string as an "
            "integer (run.yaml, line 6)",
        ),
        ("trainer:\n\n  seeed: 1", "trainer: unknown key 'seeed' (did you mean 'seed'?)"),
        ("trainer:\n\n  seeed: 1", "(run.yaml, line 7)"),
        ("trainr: {}", "(run.yaml, line 5)"),
        ("data:\n  val_files:\n  - 1", "data.val_files.0=1: input should be a valid string (run.yaml, line 6)"),
        ("rollout:\n  max_model_len: 100", "allowed: at most 100 (run.yaml, line 6)"),
        ("data: {shuffle: false,\n  seed: 3}", "data.seed=3 has no effect; allowed: together with data.shuffle=true"),
        ("data: {shuffle: false,\n  seed: 3}", "data.seed: run.yaml, line 6"),
    ],
)
def test_a_fault_names_file_and_line(lines: str, said: str, here: Path) -> None:
    least = "model: {path: m}\nreward: {function: 'a:b'}\npsrl: {rollout_n: 4}\n\n"
    more = () if "data" in lines and "val_files" not in lines else ("data.train_files=[t]",)
    assert said in refusal(least + lines, *more, *(("data.train_files=[t]",) if not more else ()))


def test_a_fault_of_an_override_names_no_line_of_the_file(here: Path) -> None:
    assert refusal(LEAST + "trainer: {seed: 1}", "trainer.seed=x").endswith("unable to parse string as an integer")


def test_yaml_that_is_none_is_named_with_its_line(here: Path) -> None:
    assert "run.yaml, line 6 cannot be read: expected ',' or '}'" in refusal(LEAST + "a: {b: 1\nc: [2\n")
    assert "trainer.seed is written twice (run.yaml, lines 5 and 6)" in refusal(LEAST + "trainer: {seed: 1,\n seed: 2}")
    assert "a mapping contains itself" in refusal("trainer: &a\n  seed: *a\n")
    assert "must be a mapping of sections, not 'psrl'" in refusal("psrl")


def test_a_section_may_be_empty(here: Path) -> None:
    assert loaded(LEAST + "trainer:\n  # seed: 3\nactor:\n  optim:\n").trainer.seed == 0
    assert loaded(LEAST, "trainer=null").trainer.seed == 0


def test_advice_for_what_people_write_into_yaml(here: Path) -> None:
    assert "unknown key 'trainer.seed' ('seed' is written below 'trainer', indented)" in refusal("trainer.seed: 1")
    assert "inside { } and [ ] a value that has ${...} needs quotes" in refusal(LEAST + "trainer: {seed: ${SEED:-9}}")


def test_a_file_may_include_others_and_wins_over_them(here: Path) -> None:
    Path("shared").mkdir()
    Path("shared/model.yaml").write_text("include: ../deep.yaml\nmodel: {path: m}\ntrainer: {seed: 1, save_freq: 1}\n")
    Path("deep.yaml").write_text("trainer: {seed: 0, test_freq: 9}\nreward: {function: 'a:b'}\n")
    Path("data.yaml").write_text("data: {train_files: t.jsonl}\ntrainer: {save_freq: 2}\npsrl: {rollout_n: 4}\n")
    config = loaded("include: [shared/model.yaml, data.yaml]\ntrainer: {seed: 3}\n")
    assert config.trainer.seed == 3
    assert config.trainer.save_freq == 2
    assert config.trainer.test_freq == 9


def test_an_included_file_may_be_named_by_a_variable(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("least.yaml").write_text(LEAST)
    monkeypatch.setenv("BASES", str(here))
    assert loaded("include: $BASES/least.yaml").psrl.rollout_n == 4
    assert "the environment variable" in refusal("include: $NOBODY_SET_THIS/least.yaml")


def test_a_value_may_come_from_a_key_of_another_file(here: Path) -> None:
    Path("least.yaml").write_text(LEAST + "trainer: {project_name: '${psrl.rollout_n} each'}")
    assert loaded("include: least.yaml\npsrl: {rollout_n: 8}").trainer.project_name == "8 each"


def test_a_fault_of_an_included_file_is_placed_there(here: Path) -> None:
    Path("least.yaml").write_text(LEAST + "trainer:\n  seed: x\n")
    assert "(least.yaml, line 6)" in refusal("include: least.yaml")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"run.yaml": "include: run.yaml"}, "run.yaml includes itself: run.yaml -> run.yaml"),
        (
            {"run.yaml": "include: a.yaml", "a.yaml": "include: [./b.yaml]", "b.yaml": "include: a.yaml"},
            "a.yaml includes itself: run.yaml -> a.yaml -> b.yaml -> a.yaml",
        ),
        ({"run.yaml": "include: none.yaml"}, "none.yaml, included by run.yaml, does not exist"),
        ({"run.yaml": "\ninclude: {a: 1}"}, "allowed: a file, or a list of files (run.yaml, line 2)"),
        ({"run.yaml": "include: [a.yaml, ~]", "a.yaml": ""}, "allowed: a file, or a list of files"),
        ({"run.yaml": "include: a.yaml", "a.yaml": "- 1"}, "configuration a.yaml must be a mapping"),
        ({"run.yaml": "defaults: [base]\n"}, "defaults: is Hydra's; allowed: include: other.yaml (run.yaml, line 1)"),
        ({"run.yaml": "include: a.yaml\ndata: {x: []}", "a.yaml": "data: {x: {}}"}, "cannot be merged with what it"),
    ],
)
def test_an_include_that_leads_nowhere_is_refused(files: dict[str, str], said: str, here: Path) -> None:
    for name, text in files.items():
        Path(name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(Path("run.yaml"))
    assert said in str(caught.value)


def test_the_same_file_may_be_included_twice(here: Path) -> None:
    Path("least.yaml").write_text(LEAST)
    Path("a.yaml").write_text("include: least.yaml\n")
    Path("b.yaml").write_text("include: least.yaml\ntrainer: {seed: 2}\n")
    assert loaded("include: [a.yaml, b.yaml]").trainer.seed == 2


def test_a_file_of_windows_is_read(here: Path) -> None:
    Path("run.yaml").write_bytes(b"\xef\xbb\xbf" + LEAST.replace("\n", "\r\n").encode())
    assert load_config(Path("run.yaml")).psrl.rollout_n == 4


PAIRS = ("ab", "bc", "cd", "de", "ef", "fg", "gh", "hi")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: " + "[" * 3000 + "]" * 3000, "run.yaml cannot be read: its values are nested too deeply"),
        ("a: &a [*a]", "run.yaml, line 1: a list contains itself"),
        (
            "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
            + "".join(
                f"{to}: &{to} [{', '.join([f'*{of}'] * 10)}]\n" for of, to in zip("abcdefgh", "bcdefghi", strict=True)
            ),
            "run.yaml has more than 100000 values, with those that aliases repeat",
        ),
    ],
)
def test_a_file_that_stands_for_more_than_it_holds_is_refused(text: str, said: str, here: Path) -> None:
    assert said in refusal(text)


def test_a_list_of_files_may_be_a_text(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FILES", "['a.jsonl', b.jsonl]")
    config = loaded(LEAST, "data.train_files=$FILES", "data.val_files=c[0-9].jsonl")
    assert (config.data.train_files, config.data.val_files) == (("a.jsonl", "b.jsonl"), ("c[0-9].jsonl",))
