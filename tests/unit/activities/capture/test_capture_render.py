"""Rendering piece by piece with templates of every family: what is appended has the ids that the whole has there."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from psrl.activities.capture.render import Template
from psrl.schemas.config.agentic import ThinkingTemplate
from psrl.schemas.errors import ConversationRefused, ModelError
from tests.support.chat_templates import FAMILIES, QWEN25, Family, chat_tokenizer

PIECES = ["bytes", "spaces"]
ENDS = {
    "qwen2.5": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "gemma": "<end_of_turn>",
    "mistral": "</s>",
    "glm": "<|user|>",
    "deepseek": "<|end_of_sentence|>",
}
"""What the policy of a family samples at the end of an answer to a user who goes on."""
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
CALL: dict[str, Any] = {
    "id": "abcdef123",
    "type": "function",
    "function": {"name": "look_up", "arguments": '{"word": "sea"}'},
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": CALL["id"]}


class Chat:
    """A template and its tokenizer."""

    def __init__(self, family: Family, pieces: str = "bytes", **how: Any) -> None:
        self.tokenizer: PreTrainedTokenizerFast = chat_tokenizer(family, pieces)
        self.stops = [self.id(stop) for stop in family.stops]
        self.template = Template.open(self.tokenizer, self.stops, **how)

    def id(self, token: str) -> int:
        return int(self.tokenizer.convert_tokens_to_ids(token))

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def whole(self, messages: Sequence[Any], tools: Any = None, **arguments: Any) -> list[int]:
        made = self.tokenizer.apply_chat_template(
            list(messages), tools=tools, tokenize=False, add_generation_prompt=True, **arguments
        )
        return self.ids(made)

    def read(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))


@lru_cache
def chat(family: str, pieces: str = "bytes") -> Chat:
    how = {"thinking": ThinkingTemplate.FORK} if family == "rounds" else {}
    return Chat(FAMILIES[family], pieces, **how)


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("family", ENDS)
def test_three_turns_put_together_are_what_the_engine_would_get_of_the_whole(family: str, pieces: str) -> None:
    """Field report 52, byte for byte: also the line end that Qwen's template writes behind the end of a turn."""
    made = chat(family, pieces)
    end = made.id(ENDS[family])
    messages: list[Any] = [user("Hello.")]
    ids = made.template.first(messages)
    assert ids == made.whole(messages)
    for text, question in (("To the sea.", "And then?"), ("It becomes rain.", "Where does it go?")):
        sampled = [*made.ids(text), end]
        piece = made.template.appended(sampled, assistant(text), [user(question)])
        ids += [*sampled, *piece]
        messages += [assistant(text), user(question)]
        whole = made.whole(messages)
        assert whole[-len(piece) - 1 :] == [end, *piece]
        # A space before an answer is the policy's own: some templates and tokenizers write one.
        assert made.read(ids).replace(" ", "") == made.read(whole).replace(" ", "")
    if family != "mistral" and pieces == "bytes":
        assert ids == made.whole(messages)


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("family", ["qwen2.5", "llama3", "mistral", "glm", "deepseek"])
def test_a_tools_result_is_appended_as_the_whole_has_it(family: str, pieces: str) -> None:
    made = chat(family, pieces)
    end = made.id("<|observation|>" if family == "glm" else ENDS[family])
    calls = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    piece = made.template.appended([5, end], calls, [result("salt water")], [TOOL])
    written = CALL["function"]["arguments"] if family == "deepseek" else {"word": "sea"}
    call = {**CALL, "function": {"name": "look_up", "arguments": written}}
    whole = made.whole([user("Hello."), {**assistant(""), "tool_calls": [call]}, result("salt water")], [TOOL])
    assert "salt water" in made.read(piece)
    assert whole[-len(piece) :] == piece
    assert whole[-len(piece) - 1] == end


def test_the_line_end_after_an_end_of_turn_begins_the_environments_segment() -> None:
    made = chat("qwen2.5")
    piece = made.template.appended([made.id("<|im_end|>")], assistant(""), [user("And then?")])
    assert made.read(piece) == "\n<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n"


def test_a_turn_cut_by_its_length_is_ended_by_the_environment() -> None:
    made = chat("qwen2.5")
    piece = made.template.appended(made.ids("To the"), assistant("To the"), [user("Go on.")])
    assert made.read(piece) == "<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"
    assert made.template.appended([], assistant(""), [user("Go on.")]) == piece


def test_a_turn_that_ended_with_another_stop_token_is_not_ended_again() -> None:
    made = chat("qwen2.5")
    piece = made.template.appended([made.id("<|endoftext|>")], assistant(""), [user("Go on.")])
    assert made.read(piece).startswith("\n<|im_start|>user")


def test_what_a_cut_turn_has_said_of_its_end_is_not_said_again() -> None:
    ends = Family("{% for m in messages %}{{ '<r>' + m.content + '\\n\\n<e>' }}{% endfor %}<r>", ("<e>",), ("<r>",))
    made = Chat(ends)
    cut = made.ids("a\n\n")
    assert made.read(made.template.appended(cut, assistant("a"), [user("b")])) == "<e><r>b\n\n<e><r>"
    assert made.read(made.template.appended(cut[:1], assistant("a"), [user("b")])) == "\n\n<e><r>b\n\n<e><r>"


def test_a_role_mark_that_was_sampled_is_not_written_twice_and_another_stays() -> None:
    made = chat("glm")
    rest = "\nGo on.<|assistant|>\n"
    question = [user("Go on.")]
    assert made.read(made.template.appended([made.id("<|user|>")], assistant(""), question)) == rest
    assert made.read(made.template.appended([made.id("<|observation|>")], assistant(""), question)) == "<|user|>" + rest
    assert made.read(made.template.appended(made.ids("cut"), assistant(""), question)) == "<|user|>" + rest


def test_an_answer_that_nobody_sampled_is_context() -> None:
    made = chat("qwen2.5")
    piece = made.template.appended([made.id("<|im_end|>")], assistant("a"), [assistant("foreign"), user("Go on.")])
    assert "<|im_start|>assistant\nforeign<|im_end|>\n<|im_start|>user" in made.read(piece)


def test_messages_that_speak_of_the_stand_in_are_appended_whole() -> None:
    made = chat("qwen2.5")
    text = "stand-in stand-innn and <|im_end|> stand-in"
    piece = made.template.appended([made.id("<|im_end|>")], assistant("stand-in"), [user(text)])
    assert made.read(piece) == f"\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def test_names_of_calls_reach_a_template_that_looks_them_up() -> None:
    """A result is rendered with the name of the call it answers, which stands in the message before."""
    looks = Family(
        "{% for m in messages %}{{ '<r>' + m.role }}"
        "{% if m.role == 'tool' %}{{ ' of ' + messages[loop.index0 - 1].tool_calls[0].function.name }}{% endif %}"
        "{{ ': ' + m.content + '<e>' }}{% endfor %}<r>assistant",
        ("<e>",),
        ("<r>",),
    )
    made = Chat(looks)
    calls = {"role": "assistant", "tool_calls": [CALL]}
    piece = made.template.appended([made.id("<e>")], calls, [result("salt water")])
    assert made.read(piece) == "<r>tool of look_up: salt water<e><r>assistant"


def test_a_turn_costs_its_own_length_whatever_came_before() -> None:
    """Counted in characters that are tokenised and messages that are rendered."""

    class Counting:
        def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
            self.tokenizer, self.added_tokens_decoder = tokenizer, tokenizer.added_tokens_decoder
            self.characters = self.messages = 0

        def __call__(self, text: str, add_special_tokens: bool, verbose: bool) -> Any:
            self.characters += len(text)
            return self.tokenizer(text, add_special_tokens=add_special_tokens, verbose=verbose)

        def apply_chat_template(self, conversation: list[dict[str, Any]], **arguments: Any) -> Any:
            self.messages += len(conversation)
            return self.tokenizer.apply_chat_template(conversation, **arguments)

        def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
            return str(self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens))

    counting = Counting(chat_tokenizer(QWEN25))
    end = int(counting.tokenizer.convert_tokens_to_ids("<|im_end|>"))
    template = Template.open(counting, [end])
    tools = [{**TOOL, "description": "x" * 5000}]
    context = template.first([user("Hello. " * 1000)], tools)
    costs = set()
    for _ in range(50):
        counting.characters = counting.messages = 0
        context += [end, *template.appended([end], assistant("a"), [user("Where does the river go?")], tools)]
        costs.add((counting.characters, counting.messages))
    (characters, messages), *others = costs
    assert not others
    assert characters < 120
    assert messages == 3


@pytest.mark.parametrize(
    ("family", "told"),
    [
        ("qwen3", "it drops the reasoning of earlier answers"),
        ("deepseek", "it drops the reasoning of earlier answers"),
        ("mistral", "it renders the tools elsewhere once the conversation goes on"),
    ],
)
def test_a_template_that_rewrites_history_is_kept_forked_or_refused(family: str, told: str) -> None:
    kept, forked = Chat(FAMILIES[family]), Chat(FAMILIES[family], thinking=ThinkingTemplate.FORK)
    assert not kept.template.plays_apart()
    assert forked.template.plays_apart()
    with pytest.raises(ModelError, match=f"{told}.*thinking_template=refuse; allowed for such a template: keep, fork"):
        Chat(FAMILIES[family], thinking=ThinkingTemplate.REFUSE)


@pytest.mark.parametrize("family", ["qwen2.5", "llama3", "gemma", "glm"])
def test_a_template_that_only_appends_needs_no_decision(family: str) -> None:
    assert not Chat(FAMILIES[family], thinking=ThinkingTemplate.REFUSE).template.plays_apart()
    assert not Chat(FAMILIES[family], thinking=ThinkingTemplate.FORK).template.plays_apart()


@pytest.mark.parametrize("thinking", [ThinkingTemplate.KEEP, ThinkingTemplate.REFUSE])
def test_a_template_that_counts_is_only_ever_forked(thinking: ThinkingTemplate) -> None:
    told = "depends on where in the conversation they stand.*allowed for such a template: fork"
    with pytest.raises(ModelError, match=told):
        Chat(FAMILIES["rounds"], thinking=thinking)
    assert chat("rounds").template.plays_apart()


def test_the_arguments_of_a_request_reach_the_template() -> None:
    """Without reasoning Qwen3 writes an empty one before the answer, and nowhere later."""
    ids = chat("qwen3").template.first([user("Hello.")], arguments={"enable_thinking": False})
    assert chat("qwen3").read(ids).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize("name", ["chat_template", "tools", "add_generation_prompt", "messages"])
def test_what_is_no_argument_of_the_template_is_refused(name: str) -> None:
    with pytest.raises(ConversationRefused, match=f"chat_template_kwargs.{name} is not the caller's to set"):
        chat("qwen2.5").template.first([user("Hello.")], arguments={name: "{{ 1 }}"})


def test_an_argument_that_makes_the_template_rewrite_history_is_refused_where_that_is() -> None:
    rewrites = Family(
        "{% for m in messages %}{{ '<r>' + m.content + ('!' if loud and not loop.last else '') + '<e>' }}{% endfor %}"
        "<r>",
        ("<e>",),
        ("<r>",),
    )
    made = Chat(rewrites, thinking=ThinkingTemplate.REFUSE)
    made.template.first([user("Hello.")])
    with pytest.raises(ConversationRefused, match="renders earlier turns differently"):
        made.template.first([user("Hello.")], arguments={"loud": True})


def test_a_template_that_leaves_out_what_was_said_is_only_ever_forked() -> None:
    told = "does not show where an answer before these messages ends.*allowed for such a template: fork"
    forgets = Family(
        "{% set last = -1 if messages | length > 2 else 0 %}"
        "{% for m in messages[last:] %}{{ '<r>' + m.content + '<e>' }}{% endfor %}<r>",
        ("<e>",),
        ("<r>",),
    )
    with pytest.raises(ModelError, match=told):
        Chat(forgets)
    assert Chat(forgets, thinking=ThinkingTemplate.FORK).template.plays_apart()


def test_a_template_whose_answers_end_with_a_token_that_stops_nothing_is_refused() -> None:
    tokenizer = chat_tokenizer(QWEN25)
    with pytest.raises(ModelError, match=r"ends an answer with '<\|im_end\|>'; allowed: .*'<\|endoftext\|>'"):
        Template.open(tokenizer, [tokenizer.convert_tokens_to_ids("<|endoftext|>")])


def test_a_template_whose_answers_end_with_no_token_of_their_own_is_refused() -> None:
    plain = Family("{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}", ("<e>",))
    with pytest.raises(ModelError, match="ends an answer with no token of its own"):
        Chat(plain)


def test_a_template_that_takes_no_conversation_is_refused() -> None:
    with pytest.raises(ModelError, match="cannot be used: the chat template refuses the messages: never"):
        Chat(Family("{{ raise_exception('never') }}", ("<e>",)))


@pytest.mark.parametrize(
    "messages",
    [[{"role": "system", "content": "Be brief."}, user("Hello.")], [user("Hello."), user("Hello?")], []],
)
def test_messages_that_the_template_refuses_are_the_callers_error(messages: list[Any]) -> None:
    with pytest.raises(ConversationRefused, match="the chat template refuses the messages"):
        chat("gemma").template.first(messages)
