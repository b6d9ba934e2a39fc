"""The GSM8K example: its files have veRL's columns and types, and are admitted as they are."""

import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

# The examples are no part of the installed package; runs name them from the repository root.
sys.path.append(str(Path(__file__).resolve().parents[3]))

from examples.gsm8k.generate import INSTRUCTION, generate, main
from psrl.activities.data.dataset import load_dataset
from psrl.schemas.config import load_config, parse_config
from tests.support.runs import config_values


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return generate(tmp_path, train=50, test=20, seed=1)


def test_columns_and_types_are_those_of_verls_preprocessing(files: tuple[Path, Path]) -> None:
    schema = pq.read_schema(files[0])
    assert {name: str(schema.field(name).type) for name in schema.names} == {
        "data_source": "string",
        "prompt": "list<element: struct<role: string, content: string>>",
        "ability": "string",
        "reward_model": "struct<style: string, ground_truth: string>",
        "extra_info": "struct<split: string, index: int64, answer: string, question: string>",
    }
    row = pq.read_table(files[1]).to_pylist()[3]
    question, answer = row["extra_info"]["question"], row["extra_info"]["answer"]
    assert row == {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"{question} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer.split("#### ")[1]},
        "extra_info": {"split": "test", "index": 3, "answer": answer, "question": question},
    }


def test_the_files_are_admitted_as_they_are(files: tuple[Path, Path], tiny_model_dir: Path) -> None:
    train, test = files
    data = {"train_files": str(train), "val_files": str(test), "max_prompt_length": 400}
    dataset = load_dataset(parse_config(config_values(tiny_model_dir, train, data=data)))
    assert (len(dataset.train), len(dataset.validation), dataset.skipped_too_long, dataset.notes) == (50, 20, 0, ())
    for prompt in (*dataset.train, *dataset.validation):
        info = prompt.extra["extra_info"]
        assert prompt.text == f"<|user|>{info['question']} {INSTRUCTION}<|assistant|>"
        assert info["answer"].endswith(f"\n#### {prompt.ground_truth}")
        assert prompt.data_source == "openai/gsm8k"


def test_results_are_right_and_no_question_comes_twice(files: tuple[Path, Path]) -> None:
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    questions = {row["extra_info"]["question"] for row in rows}
    assert len(questions) == len(rows) == 70
    for row in rows:
        for sum_ in row["extra_info"]["answer"].split("<<")[1:]:
            left, _, right = sum_.partition(">>")[0].partition("=")
            assert eval(left) == int(right)  # digits and signs of our own making
        assert row["reward_model"]["ground_truth"] == right


def test_seed_decides_every_byte(tmp_path: Path) -> None:
    made = [generate(tmp_path / str(number), train=9, test=3, seed=seed) for number, seed in enumerate((5, 5, 6))]
    one, same, other = ([file.read_bytes() for file in files] for files in made)
    assert one == same != other


def test_a_number_of_rows_that_there_is_not_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path), "--train", "1000000"])
    assert "train=1000000, test=64: allowed are 1 or more rows each" in capsys.readouterr().err


def test_the_configuration_is_one() -> None:
    file = Path(__file__).parents[3] / "examples" / "gsm8k" / "gsm8k.yaml"
    assert load_config(file).data.train_files == (".cache/gsm8k/train.parquet",)
