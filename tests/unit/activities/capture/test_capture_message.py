"""Messages made of sampled tokens, with vLLM's own parsers, and what becomes of them when a client repeats them."""

import json
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from psrl.activities.capture.conversation import after, opening
from psrl.activities.capture.message import Answer, Reader
from psrl.schemas.errors import ConversationRefused, ModelError
from psrl.schemas.messages.rollout import SegmentEnd
from tests.support.chat_templates import QWEN3, chat_tokenizer

TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {"word": {"type": "string"}}}},
}
THOUGHT = "<think>\nhm\n</think>\n\n"
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"word": "river"}}\n</tool_call>'
STOP, LENGTH = SegmentEnd.STOP, SegmentEnd.LENGTH


@lru_cache
def tokenizer() -> PreTrainedTokenizerFast:
    return chat_tokenizer(QWEN3)


def stops() -> list[int]:
    return list(tokenizer().convert_tokens_to_ids(list(QWEN3.stops)))


@lru_cache
def reader(tool_parser: str | None = None, reasoning_parser: str | None = None) -> Reader:
    if tool_parser or reasoning_parser:
        pytest.importorskip("vllm", exc_type=ImportError)
    return Reader(tokenizer(), stops(), tool_parser, reasoning_parser)


@pytest.fixture(scope="module", autouse=True)
def loaded_engine_library() -> None:
    """Its import warns of its own dependencies."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reader("hermes", "deepseek_r1")


def read(reader: Reader, text: str, end: SegmentEnd = STOP, key: str = "k", tools: Any = (TOOL,)) -> Answer:
    ids = tokenizer()(text, add_special_tokens=False)["input_ids"]
    return reader.read(ids + stops()[:1] * (end is STOP), end, key, tools)


def test_without_a_parser_the_message_is_the_text_whole() -> None:
    assert read(reader(), "Hi" + CALL) == Answer({"role": "assistant", "content": "Hi" + CALL}, "stop")
    assert read(reader(), "Hi", LENGTH) == Answer({"role": "assistant", "content": "Hi"}, "length")
    assert read(reader(), "") == Answer({"role": "assistant", "content": ""}, "stop")
    assert reader().read([], LENGTH, "k").message["content"] == ""


def test_special_tokens_within_an_answer_are_not_shown() -> None:
    assert read(reader(), "Hi<|im_start|>there").message["content"] == "Hithere"


def test_reasoning_and_calls_are_told_apart() -> None:
    answer = read(reader("hermes", "deepseek_r1"), THOUGHT + CALL)
    (call,) = answer.message.pop("tool_calls")
    assert answer == Answer({"role": "assistant", "content": None, "reasoning": "\nhm\n"}, "tool_calls")
    assert call["type"] == "function"
    assert call["function"]["name"] == "look_up"
    assert json.loads(call["function"]["arguments"]) == {"word": "river"}


def test_an_answer_made_again_has_the_same_ids_of_calls_and_another_turns_has_others() -> None:
    def ids(key: str) -> list[str]:
        return [call["id"] for call in read(reader("hermes"), CALL + CALL, key=key).message["tool_calls"]]

    assert ids("a") == ids("a")
    assert len({*ids("a"), *ids("b")}) == 4
    assert all(len(name) == 9 and name.isalnum() for name in ids("a"))


def test_a_call_that_was_cut_ends_by_its_length() -> None:
    assert read(reader("hermes"), CALL, LENGTH).finish_reason == "length"


def test_a_call_that_is_no_call_is_text() -> None:
    broken = CALL.replace("}}", "}")
    assert read(reader("hermes"), broken) == Answer({"role": "assistant", "content": broken}, "stop")


def test_nothing_is_lost_of_an_answer_whose_request_forbids_calls() -> None:
    assert read(reader("hermes"), "Hi" + CALL, tools=None).message == {"role": "assistant", "content": "Hi" + CALL}


def test_a_parser_that_breaks_on_an_answer_leaves_its_text(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise AttributeError("no such state")

    parses = reader("hermes", "deepseek_r1")
    monkeypatch.setattr(parses._parser, "parse", breaks)
    assert read(parses, THOUGHT).message == {"role": "assistant", "content": THOUGHT}
    assert "cannot read" in caplog.text


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"tool_parser": "hermez"}, r"tool_parser='hermez' is none of vLLM's \(did you mean 'hermes'\?\); allowed: .*"),
        ({"reasoning_parser": "deep"}, "reasoning_parser='deep' is none of vLLM's.*allowed: .*deepseek_r1"),
        ({"tool_parser": "mistral"}, "Mistral parser could not locate the tool call token in the tokenizer"),
    ],
)
def test_a_parser_that_does_not_fit_is_refused(how: dict[str, str], told: str) -> None:
    with pytest.raises(ModelError, match=told):
        Reader(tokenizer(), stops(), **how)


def test_tools_that_the_protocol_does_not_know_are_refused() -> None:
    with pytest.raises(ConversationRefused, match=r"tools: .*function\.name"):
        read(reader("hermes"), "Hi", tools=[{"type": "function", "function": {}}])


def without_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "reasoning"}


def in_parts(message: dict[str, Any]) -> dict[str, Any]:
    text = message["content"]
    return {**message, "content": [{"type": "text", "text": text}] if text else []}


def stripped(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": (message["content"] or "").strip()}


def parsed_calls(message: dict[str, Any]) -> dict[str, Any]:
    calls = json.loads(json.dumps(message.get("tool_calls", [])))
    for call in calls:
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return {**message, "tool_calls": calls}


ECHOES: list[Callable[[dict[str, Any]], dict[str, Any]]] = [dict, without_reasoning, in_parts, stripped, parsed_calls]
SAID = st.lists(
    st.sampled_from([THOUGHT, CALL, "Hi", " \n", "{}", "<think>", "</think>", "<|im_start|>", "é"]), max_size=5
)


@given(
    said=SAID | st.lists(st.integers(0, 300)),
    parsers=st.sampled_from([(None, None), ("hermes", None), ("hermes", "deepseek_r1")]),
    echo=st.sampled_from(ECHOES),
)
@settings(max_examples=60)
def test_a_client_that_repeats_an_answer_gets_its_node(said: list[Any], parsers: Any, echo: Any) -> None:
    ids = (
        said if said and isinstance(said[0], int) else tokenizer()("".join(said), add_special_tokens=False)["input_ids"]
    )
    message = reader(*parsers).read(ids, STOP, "k", [TOOL]).message
    assert after(opening(None, None), [json.loads(json.dumps(echo(message)))]) == after(opening(None, None), [message])
