"""The arithmetic example: its data, its reward, and the model it starts from."""

from __future__ import annotations

import json
import string
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# The examples are no part of the installed package; runs name them from the repository root.
sys.path.append(str(Path(__file__).resolve().parents[3]))

from examples.arithmetic.generate import generate
from examples.arithmetic.generate import main as generate_main
from examples.arithmetic.reward import exact_sum


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def unordered(data: list[dict[str, Any]]) -> set[frozenset[int]]:
    return {frozenset((row["extra_info"]["a"], row["extra_info"]["b"])) for row in data}


class TestGenerate:
    @pytest.mark.parametrize(("digits", "validation"), [(1, 20), (1, 21), (1, 50), (2, 200)])
    def test_no_validation_sum_is_trained_on(self, tmp_path: Path, digits: int, validation: int) -> None:
        train, held_out = map(rows, generate(tmp_path, digits=digits, train=12_000, validation=validation, seed=3))
        assert len(train) == 12_000
        assert len({row["prompt"][0]["content"] for row in held_out}) == len(held_out) == validation
        assert not unordered(train) & unordered(held_out)
        assert len({row["prompt"][0]["content"] for row in train}) == 100**digits - validation

    def test_seed_decides_every_byte(self, tmp_path: Path) -> None:
        for folder, seed in (("one", 5), ("same", 5), ("other", 6)):
            generate(tmp_path / folder, digits=1, train=100, validation=20, seed=seed)
        for name in ("train.jsonl", "validation.jsonl"):
            one = (tmp_path / "one" / name).read_bytes()
            assert one == (tmp_path / "same" / name).read_bytes()
            assert one != (tmp_path / "other" / name).read_bytes()

    def test_each_pass_over_the_sums_is_complete(self, tmp_path: Path) -> None:
        train, _ = map(rows, generate(tmp_path, digits=1, train=160, validation=20, seed=0))
        questions = [row["prompt"][0]["content"] for row in train]
        assert sorted(questions[:80]) == sorted(questions[80:])
        assert questions[:80] != questions[80:]

    def test_row_holds_the_columns_people_have(self, tmp_path: Path) -> None:
        generate_main(["--out", str(tmp_path), "--digits", "2", "--train", "1", "--validation", "1"])
        row = rows(tmp_path / "train.jsonl")[0]
        a, b = row["extra_info"]["a"], row["extra_info"]["b"]
        assert row["prompt"] == [{"role": "user", "content": f"{a}+{b}="}]
        assert row["reward_model"] == {"style": "rule", "ground_truth": str(a + b)}
        assert row["data_source"] == "arithmetic/2-digit"

    def test_too_many_validation_rows_are_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            generate_main(["--out", str(tmp_path), "--validation", "51"])
        assert "validation=51" in capsys.readouterr().err


def score(response: str, truth: Any = "7") -> float:
    sample: Any = SimpleNamespace(data_source="arithmetic/1-digit", response_text=response, ground_truth=truth)
    return exact_sum(sample)


class TestReward:
    @pytest.mark.parametrize("response", ["7", " 7", "7\n", "\t7 "])
    def test_right_number_is_one(self, response: str) -> None:
        assert score(response) == 1.0
        assert score(response, truth=7) == 1.0

    @pytest.mark.parametrize(
        "response",
        ["", " ", "~7", "8", "77", "07", "7.", "7.0", "+7", "7 7", "3+4=7", "seven", "\u0667", "7\x00", "-7"],
    )
    def test_anything_else_is_zero(self, response: str) -> None:
        assert score(response) == 0.0

    def test_zero_is_a_number(self) -> None:
        assert score("0", truth="0") == 1.0

    @pytest.mark.parametrize("truth", [None, "", "x", "1e3", 7.0, "-1"])
    def test_faulty_ground_truth_raises_instead_of_scoring(self, truth: Any) -> None:
        with pytest.raises(ValueError, match="ground_truth="):
            score("7", truth=truth)


@pytest.fixture(scope="module")
def demo() -> Any:
    """The model maker; imported late because the data and the reward need no torch."""
    pytest.importorskip("torch")
    from examples.arithmetic import demo_model

    return demo_model


def make(demo: Any, out: Path, *, seed: int = 0, say: Any = lambda line: None, **values: Any) -> bool:
    """A model that has learnt next to nothing, in a fraction of a second."""
    short = {"batch_sums": 16, "sums_accuracy": 0.0, "style_steps": 3, **values}
    return bool(demo.make_demo_model(out, demo.Recipe(seed=seed, **short), say))


@pytest.fixture(scope="module")
def checkpoint(demo: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "model"
    assert make(demo, folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoint)


class TestTokenizer:
    def test_printable_ascii_round_trips(self, tokenizer: Any) -> None:
        text = "".join(c for c in string.printable if c.isprintable()) + "\n  two  blanks , and 's n't .\n\n "
        ids = tokenizer.encode(text)
        assert len(set(text)) == 96
        assert len(ids) == len(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert "".join(map(tokenizer.decode, ids)) == text

    def test_every_id_of_the_padded_vocabulary_has_a_text(self, tokenizer: Any, checkpoint: Path) -> None:
        size = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
        assert len(tokenizer) == size
        assert all(tokenizer.decode([i]) for i in range(size))

    def test_plain_tokenizers_library_agrees(self, tokenizer: Any, checkpoint: Path) -> None:
        from tokenizers import Tokenizer

        plain = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        text = "<|user|>3+4=\n x<|assistant|>"
        assert plain.encode(text).ids == tokenizer.encode(text)

    def test_special_tokens(self, tokenizer: Any) -> None:
        assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
        assert tokenizer.decode([*tokenizer.encode("7"), 2], skip_special_tokens=True) == "7"
        assert tokenizer.encode("\u00e97") == tokenizer.encode("7"), "other characters are dropped"

    def test_chat_template_renders_and_keeps_prefixes(self, tokenizer: Any) -> None:
        question = [{"role": "user", "content": "3+4="}]
        options = {"add_generation_prompt": True, "return_dict": False}
        assert tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True) == (
            "<|user|>3+4=<|assistant|>"
        )
        prompt = tokenizer.apply_chat_template(question, **options)
        assert len(prompt) == 6
        longer = [*question, {"role": "assistant", "content": "7"}, {"role": "user", "content": "1+1="}]
        answered = [*prompt, *tokenizer.encode("7"), tokenizer.eos_token_id]
        assert tokenizer.apply_chat_template(longer, **options)[: len(answered)] == answered


class TestDemoModel:
    def test_loads_with_plain_transformers(self, checkpoint: Path) -> None:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(checkpoint)
        assert model.config.architectures == ["Qwen2ForCausalLM"]
        assert model.lm_head.weight is model.model.embed_tokens.weight

    def test_same_seed_same_weights(self, demo: Any, checkpoint: Path, tmp_path: Path) -> None:
        demo.torch.rand(3)  # the caller's random state has no say
        make(demo, tmp_path / "same")
        make(demo, tmp_path / "other", seed=1)
        weights = (checkpoint / "model.safetensors").read_bytes()
        assert weights == (tmp_path / "same" / "model.safetensors").read_bytes()
        assert weights != (tmp_path / "other" / "model.safetensors").read_bytes()

    def test_made_once_per_recipe(self, demo: Any, tmp_path: Path) -> None:
        out = tmp_path / "model"
        assert make(demo, out)
        before = (out / "model.safetensors").stat().st_mtime_ns
        assert not make(demo, out)
        assert (out / "model.safetensors").stat().st_mtime_ns == before
        assert make(demo, out, style_steps=4)
        assert [path.name for path in tmp_path.iterdir()] == ["model"], "scratch folders are removed"

    def test_foreign_folder_is_left_alone(self, demo: Any, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("mine")
        with pytest.raises(FileExistsError, match="no demo model"):
            make(demo, tmp_path)
        assert (tmp_path / "thesis.txt").read_text() == "mine"

    def test_failure_leaves_nothing_behind(self, demo: Any, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match="not learnt"):
            make(demo, tmp_path / "model", sums_accuracy=1.1, sums_max_steps=10)
        assert list(tmp_path.iterdir()) == []

    def test_unknown_size_is_refused(self, demo: Any) -> None:
        with pytest.raises(ValueError, match="size='huge'"):
            demo.Recipe(size="huge")
