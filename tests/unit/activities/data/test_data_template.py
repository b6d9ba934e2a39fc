"""Chat templates: the one that is chosen, the form of calls that it wants, and what becomes of one that fails."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from psrl.activities.data.dataset import Dataset, fingerprint, load_dataset
from psrl.schemas.config import parse_config
from psrl.schemas.errors import ConfigError, DataError, ModelError
from tests.support.runs import config_values, write_jsonl

ASK = [{"role": "user", "content": "q"}]
CALL = [
    *ASK,
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"x": "1"}'}}]},
    {"role": "tool", "content": "2"},
]
FLAT = [*ASK, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"x": "1"}}]}, *ASK]
OPEN = "{% for m in messages %}"
AS_OBJECT = (
    OPEN + "{% for c in m.tool_calls %}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}"
    "{% endfor %}{% endfor %}"
)
AS_JSON = OPEN + "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
JOINED = OPEN + "{% for c in m['tool_calls'] %}{{ 'f ' + c['function']['arguments'] }}{% endfor %}{% endfor %}"
PRINTED = OPEN + "{% for c in m.tool_calls %}{{ (c.function or c).arguments }}{% endfor %}{% endfor %}"
TOOLS = "{% for t in tools %}{{ t.function.name }} {% endfor %}" + OPEN + "{{ m.content }}{% endfor %}"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}


def with_template(model: Path, folder: Path, template: str) -> Path:
    copy = folder / "model"
    shutil.copytree(model, copy)
    (copy / "chat_template.jinja").write_text(template)
    return copy


def load(model: Path, folder: Path, row: dict[str, Any], **data: Any) -> Dataset:
    train = write_jsonl(folder / "a.jsonl", [{"prompt": "no chat"}, row])
    return load_dataset(parse_config(config_values(model, train, data={"max_prompt_length": 1000, **data})))


@pytest.mark.parametrize(
    ("template", "messages", "rendered"),
    [
        (AS_OBJECT, CALL, "x=1"),
        (AS_JSON, CALL, '{"x": "1"}'),
        (JOINED, CALL, 'f {"x": "1"}'),
        (PRINTED, CALL, '{"x": "1"}'),
        (PRINTED, FLAT, '{"x": "1"}'),
    ],
)
def test_arguments_of_calls_reach_the_template_in_the_form_it_wants(
    tiny_model_dir: Path, tmp_path: Path, template: str, messages: Any, rendered: str
) -> None:
    model = with_template(tiny_model_dir, tmp_path, template)
    assert load(model, tmp_path, {"prompt": messages}).train[1].text == rendered


def test_a_field_that_parquet_fills_with_null_is_not_there(tiny_model_dir: Path, tmp_path: Path) -> None:
    calls = [[{"name": "f", "arguments": {"x": "1"}}], [{"name": "g", "arguments": {"y": "2"}}]]
    messages = [*ASK, *({"role": "assistant", "tool_calls": call} for call in calls), *ASK]
    model = with_template(tiny_model_dir, tmp_path, PRINTED)
    pq.write_table(pa.Table.from_pylist([{"prompt": messages}]), tmp_path / "a.parquet")
    values = config_values(model, tmp_path / "a.parquet", data={"max_prompt_length": 100})
    assert load_dataset(parse_config(values)).train[0].text == '{"x": "1"}{"y": "2"}'


@pytest.mark.parametrize("tools", [[TOOL], '[{"type": "function", "function": {"name": "add"}}]'])
def test_tools_of_a_row_are_shown_to_the_model(tiny_model_dir: Path, tmp_path: Path, tools: Any) -> None:
    model = with_template(tiny_model_dir, tmp_path, TOOLS)
    dataset = load(model, tmp_path, {"prompt": ASK, "tools": tools})
    assert dataset.train[1].text == "add q"
    assert dataset.train[1].extra["tools"] == tools
    assert dataset.notes == ()


def test_that_a_template_has_no_place_for_tools_is_said(tiny_model_dir: Path, tmp_path: Path) -> None:
    dataset = load(tiny_model_dir, tmp_path, {"prompt": ASK, "tools": [TOOL]})
    assert dataset.train[1].text == "<|user|>q<|assistant|>"
    assert [note.startswith("column 'tools' is not shown to the model") for note in dataset.notes] == [True]


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("a\n{{ messages[0].content + 1 }}", r"line 2\) refuses the messages: TypeError: can only concatenate str"),
        ("{{ 1 / 0 }}", r"line 1\) refuses the messages: ZeroDivisionError: division by zero"),
        ("\n\n{{ messages[7].content }}", r"line 3\) refuses the messages: .* has no element 7"),
        ("{{ raise_exception('roles must\nalternate') }}", r"line 1\) refuses the messages: roles must alternate$"),
        ("{{ messages[0].content.missing() }}", r"line 1\) refuses the messages: .* has no attribute 'missing'"),
        ("{% macro m(x) %}\n{{ x.y + 1 }}{% endmacro %}\n{{ m({}) }}", r"line 2\) refuses the messages: .*'y'"),
        ("{% for i in range(10**9) %}{% endfor %}", r"line 1\) refuses the messages: OverflowError: Range too big"),
    ],
)
def test_whatever_a_template_raises_names_row_file_and_line(
    tiny_model_dir: Path, tmp_path: Path, template: str, reason: str
) -> None:
    model = with_template(tiny_model_dir, tmp_path, template)
    where = r"a\.jsonl:2: column 'prompt': the model's chat template \(chat_template\.jinja, "
    with pytest.raises(DataError, match=where + reason):
        load(model, tmp_path, {"prompt": ASK})


def test_a_template_that_is_none_is_the_models_fault(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = with_template(tiny_model_dir, tmp_path, "a\n{% if x %}")
    with pytest.raises(ModelError, match=r"chat_template\.jinja, line 2: not a valid chat template: Unexpected end"):
        load(model, tmp_path, {"prompt": ASK})


def test_text_that_a_template_makes_unstorable_is_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = with_template(tiny_model_dir, tmp_path, "{{ 'a\\x00' }}")
    with pytest.raises(DataError, match=r"a\.jsonl:2: column 'prompt', laid out by the chat template, holds a NUL"):
        load(model, tmp_path, {"prompt": ASK})


@pytest.fixture
def many(tiny_model_dir: Path, tmp_path: Path) -> Path:
    """A model with two templates, none of them the default."""
    model = with_template(tiny_model_dir, tmp_path, "")
    (model / "chat_template.jinja").unlink()
    (model / "additional_chat_templates").mkdir()
    for name in ("brief", "wordy"):
        template = f"{{{{ '{name} ' + messages[0].content }}}}"
        (model / "additional_chat_templates" / f"{name}.jinja").write_text(template)
    return model


def test_several_templates_without_a_default_are_named(many: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"a\.jsonl:2: .* allowed: data\.chat_template=brief or wordy"):
        load(many, tmp_path, {"prompt": ASK})


def test_a_template_is_chosen_by_its_name(many: Path, tmp_path: Path) -> None:
    assert load(many, tmp_path, {"prompt": ASK}, chat_template="wordy").train[1].text == "wordy q"


def test_a_chosen_template_that_is_not_there_is_refused_even_without_a_chat(many: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"data\.chat_template=long: .* allowed: brief, wordy, a file whose name ends"
    ):
        load(many, tmp_path, {"prompt": "a"}, chat_template="long")
    with pytest.raises(ConfigError, match=r"data\.chat_template=/.*none\.jinja cannot be read"):
        load(many, tmp_path, {"prompt": "a"}, chat_template=str(tmp_path / "none.jinja"))


def test_a_template_may_be_a_file_and_is_part_of_the_fingerprint(many: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    prints = []
    for text in ("own", "other"):
        own.write_text(text)
        assert load(many, tmp_path, {"prompt": ASK}, chat_template=str(own)).train[1].text == text
        values = config_values(many, tmp_path / "a.jsonl", data={"chat_template": str(own)})
        prints.append(fingerprint(parse_config(values)))
    assert prints[0] != prints[1]
