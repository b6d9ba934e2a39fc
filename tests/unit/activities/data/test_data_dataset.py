"""From rows to tokenised prompts, and the fingerprint that ties a run to them."""

from pathlib import Path
from typing import Any

import pytest

from psrl.activities.data.dataset import Dataset, DatasetCache, fingerprint, load_dataset
from psrl.activities.store.codec import decode_ids
from psrl.schemas.config import RunConfig, parse_config
from psrl.schemas.errors import DataError, ModelError
from tests.support.runs import config_values, ids_of, sums, write_jsonl

USER, ASSISTANT = 4, 5


def config(model: Path, train: Path, **data: Any) -> RunConfig:
    return parse_config(config_values(model, train, data=data))


def load(model: Path, tmp_path: Path, rows: list[dict[str, Any]], **data: Any) -> Dataset:
    return load_dataset(config(model, write_jsonl(tmp_path / "train.jsonl", rows), **data))


def test_chat_messages_pass_through_the_template_up_to_the_assistants_turn(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    (prompt,) = load(tiny_model_dir, tmp_path, sums(1)).train
    assert prompt.text == "<|user|>0+1=<|assistant|>"
    assert decode_ids(prompt.ids) == [USER, *ids_of("0+1="), ASSISTANT]
    assert (prompt.data_source, prompt.ground_truth) == ("sums", "1")
    assert prompt.extra == {"extra_info": {"number": 0}, "reward_model": {"style": "rule"}}


def test_plain_text_reaches_the_model_as_it_is(tiny_model_dir: Path, tmp_path: Path) -> None:
    (prompt,) = load(tiny_model_dir, tmp_path, [{"question": "1+1="}], prompt_key="question").train
    assert (prompt.text, decode_ids(prompt.ids)) == ("1+1=", ids_of("1+1="))
    assert (prompt.data_source, prompt.ground_truth, prompt.extra) == ("", None, {})


def test_over_long_prompts_are_skipped_and_counted_never_cut(tiny_model_dir: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "a" * 20}, {"prompt": "b" * 3302}, {"prompt": "c"}, {"prompt": "d" * 21}]
    dataset = load(tiny_model_dir, tmp_path, rows)
    assert [(prompt.row, len(decode_ids(prompt.ids))) for prompt in dataset.train] == [(0, 20), (2, 1)]
    assert dataset.skipped_too_long == 2


def test_a_prompt_of_3302_tokens_is_skipped_where_2048_are_allowed(tiny_model_dir: Path, tmp_path: Path) -> None:
    """Field report 129."""
    rows = [{"prompt": "a" * 2048}, {"prompt": "b" * 3302}, {"prompt": "c" * 2049}, {"prompt": "d"}]
    dataset = load(tiny_model_dir, tmp_path, rows, max_prompt_length=2048)
    assert [(prompt.row, len(decode_ids(prompt.ids))) for prompt in dataset.train] == [(0, 2048), (3, 1)]
    assert dataset.skipped_too_long == 2


def test_a_file_without_a_usable_prompt_is_refused_with_the_counts(tiny_model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no usable prompt .*3 rows, 3 of them longer than data.max_prompt_length=20"):
        load(tiny_model_dir, tmp_path, [{"prompt": "a" * 30}] * 3)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"question": "1"}, r"train\.jsonl:2: no column 'prompt' \(data\.prompt_key\); columns here: question"),
        ({"prompt": ""}, r"train\.jsonl:2: column 'prompt' is empty"),
        ({"prompt": 7}, r"train\.jsonl:2: column 'prompt' must be text or a list of chat messages, not 7"),
        ({"prompt": []}, r"must be text or a list of chat messages"),
        ({"prompt": [{"role": "user"}]}, r"message 0 of 'prompt': content=None; allowed: text"),
        ({"prompt": "a", "reward_model": "rule"}, r"reward_model='rule' must be an object"),
        ({"prompt": "a", "reward_model": {"ground_truth": "\0"}}, r"reward_model\.ground_truth=.* cannot be kept"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_with_its_place(
    tiny_model_dir: Path, tmp_path: Path, row: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DataError, match=reason):
        load(tiny_model_dir, tmp_path, [{"prompt": "ok"}, row])


def test_rows_are_counted_over_all_files_and_validation_is_limited(tiny_model_dir: Path, tmp_path: Path) -> None:
    first = write_jsonl(tmp_path / "a.jsonl", sums(2))
    second = write_jsonl(tmp_path / "b.jsonl", sums(3, first=5))
    files = (str(first), str(second))
    dataset = load_dataset(
        config(tiny_model_dir, first, train_files=files, val_files=(str(second),), val_max_samples=2)
    )
    assert [prompt.row for prompt in dataset.train] == [0, 1, 2, 3, 4]
    assert [prompt.ground_truth for prompt in dataset.validation] == ["6", "7"]


def test_chat_messages_without_a_chat_template_are_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny_model_dir.iterdir():
        if file.suffix != ".jinja":
            (model / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ModelError, match=r"train\.jsonl:1: .*no chat template"):
        load(model, tmp_path, sums(1))


def test_the_fingerprint_follows_content_order_and_settings(tiny_model_dir: Path, tmp_path: Path) -> None:
    a, b = write_jsonl(tmp_path / "a.jsonl", sums(1)), write_jsonl(tmp_path / "b.jsonl", sums(2))
    files = [(str(a),), (str(a), str(b)), (str(b), str(a))]
    prints = [fingerprint(config(tiny_model_dir, a, train_files=names)) for names in files]
    prints.append(fingerprint(config(tiny_model_dir, a, max_prompt_length=19)))
    write_jsonl(a, sums(1, first=1))
    prints.append(fingerprint(config(tiny_model_dir, a)))
    assert len(set(prints)) == len(prints)


def test_a_run_goes_on_with_the_data_in_memory_and_refuses_other_data(tiny_model_dir: Path, tmp_path: Path) -> None:
    train = write_jsonl(tmp_path / "train.jsonl", sums(3))
    chosen = config(tiny_model_dir, train)
    cache = DatasetCache()
    admitted = cache.load(chosen)
    assert cache.load(chosen) is admitted
    write_jsonl(train, sums(4))
    assert cache.admitted(chosen, admitted.fingerprint) is admitted
    with pytest.raises(DataError, match="have changed since the run was admitted"):
        DatasetCache().admitted(chosen, admitted.fingerprint)


def test_a_name_that_no_file_can_have_is_refused(tiny_model_dir: Path) -> None:
    with pytest.raises(DataError, match=r"data\.train_files: 'a+\.\.\. cannot be looked up: File name too long$"):
        fingerprint(config(tiny_model_dir, Path("a" * 5000 + ".jsonl")))
