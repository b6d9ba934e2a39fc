"""Reading messages of every form, and the node that names a conversation."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrl.activities.capture.conversation import Node, after, answered, opening
from psrl.activities.capture.messages import Call, Said, read_messages
from psrl.schemas.errors import ConversationRefused

USER = {"role": "user", "content": "What is a river?"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "river", "n": 1}'}}
ASKS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "water that flows"}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}


def node(*messages: Any, tools: Any = None, arguments: Any = None) -> Node:
    return after(opening(tools, arguments), messages)


def called(**function: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{**CALL, "function": {"name": "look_up", **function}}]}


def test_every_form_of_a_message_is_read_into_one() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    reasoned = {"role": "assistant", "content": "c", "reasoning_content": "why"}
    assert read_messages([parts, reasoned, ASKS, RESULT]) == [
        Said("user", "a\nb"),
        Said("assistant", "c", reasoning="why"),
        Said("assistant", "", calls=(Call("call_1", "look_up", {"word": "river", "n": 1}),)),
        Said("tool", "water that flows", answers="call_1"),
    ]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("hello", "messages[7]='hello'; allowed: an object"),
        ({"content": "a"}, "messages[7].role=None; allowed: text"),
        ({"role": "user", "content": 5}, "messages[7].content=5; allowed: text"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
            "messages[7].content[0].type='image_url'; allowed: 'text', the only kind that this model takes",
        ),
        ({"role": "assistant", "tool_calls": "x"}, "messages[7].tool_calls='x'; allowed: a list"),
        (
            {"role": "assistant", "tool_calls": [{"id": "1"}]},
            "messages[7].tool_calls[0]={'id': '1'}; allowed: an object with a function",
        ),
        (called(name=""), "messages[7].tool_calls[0].function.name=''; allowed: text"),
    ],
)
def test_what_cannot_be_said_is_refused_by_its_path(message: Any, told: str) -> None:
    with pytest.raises(ConversationRefused) as refused:
        read_messages([message], offset=7)
    assert str(refused.value) == told


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ASKS, {**ASKS, "content": ""}),
        (ASKS, {name: value for name, value in ASKS.items() if name != "content"}),
        (ASKS, called(arguments={"n": 1.0, "word": "river"})),
        (ASKS, called(arguments='{ "n":1,\n"word":"river"}')),
        (ASKS, {**ASKS, "tool_calls": [{**CALL, "id": "another"}]}),
        (called(arguments=""), called(arguments="{}")),
        (called(arguments="no json "), called(arguments="no json ")),
        ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "a", "reasoning": "because"}),
        ({"role": "assistant", "content": "\n\na \nb\n"}, {"role": "assistant", "content": "a\nb"}),
        ({"role": "user", "content": "a  \nb\r\n"}, {"role": "user", "content": "a\nb"}),
        (USER, {**USER, "content": [{"type": "text", "text": USER["content"]}]}),
        ({"role": "assistant", "content": "a"}, {"content": "a", "role": "assistant", "refusal": None, "audio": None}),
    ],
)
def test_a_client_need_not_repeat_a_message_letter_by_letter(one: Any, other: Any) -> None:
    assert node(USER, one) == node(USER, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (USER, {**USER, "role": "system"}),
        (USER, {**USER, "content": "  What is a river?"}),
        (USER, {**USER, "name": "anna"}),
        (ASKS, called(arguments={"word": "sea", "n": 1})),
        (ASKS, called(name="search", arguments=CALL["function"]["arguments"])),
        (ASKS, {**ASKS, "content": "Let me see."}),
    ],
)
def test_what_says_something_else_is_another_node(one: Any, other: Any) -> None:
    assert node(one) != node(other)


def test_a_node_depends_on_order_tools_and_template_arguments() -> None:
    assert node(USER, RESULT) != node(RESULT, USER)
    assert node(USER, tools=[TOOL]) != node(USER)
    assert node(USER, arguments={"enable_thinking": False}) != node(USER)
    assert node(USER, tools=[], arguments={}) == node(USER)
    assert node(USER, tools=[json.loads(json.dumps(TOOL, sort_keys=True))]) == node(USER, tools=[TOOL])


def test_two_messages_are_never_taken_for_one() -> None:
    assert node({"role": "user", "content": "a"}, {"role": "user", "content": "b"}) != node(
        {"role": "user", "content": "a\nb"}
    )


def test_every_prefix_that_ends_in_an_answer_has_a_node_longest_first() -> None:
    answer = {"role": "assistant", "content": "Water."}
    found = answered([USER, ASKS, RESULT, answer, USER], [TOOL], None)
    assert [prefix.messages for prefix in found] == [4, 2]
    assert [prefix.node for prefix in found] == [
        node(USER, ASKS, RESULT, answer, tools=[TOOL]),
        node(USER, ASKS, tools=[TOOL]),
    ]


def test_a_node_is_made_of_its_parents_and_what_was_added() -> None:
    assert after(node(USER, ASKS), [RESULT]) == node(USER, ASKS, RESULT)


def test_half_a_surrogate_pair_has_a_node() -> None:
    assert node({"role": "user", "content": "\ud800"}) != node({"role": "user", "content": "\ud801"})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    text=st.text(max_size=20), arguments=st.dictionaries(st.text(max_size=5), JSON, max_size=4), indent=st.booleans()
)
def test_a_message_that_passed_through_json_has_the_same_node(text: str, arguments: Any, indent: bool) -> None:
    said = {"role": "assistant", "content": text, "tool_calls": [{**CALL, "function": {"name": "f"}}]}
    sent, echoed = json.loads(json.dumps([said, said]))
    sent["tool_calls"][0]["function"]["arguments"] = json.dumps(arguments)
    turned = dict(reversed(arguments.items()))
    echoed["tool_calls"][0]["function"]["arguments"] = json.dumps(turned, indent=2 if indent else None)
    echoed["content"] = [{"type": "text", "text": text}] if text else None
    assert node(USER, sent) == node(USER, echoed)
