"""One prompt: from a row in the columns people have to rendered text, with everything a reward may want to see.

Promises: a value that the run needs and cannot keep is refused with its place, as is text anywhere that cannot be
stored; in any other column null takes the place of what has no form in JSON, and a note says so.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

from ...schemas.config.data import DataSection
from ...schemas.errors import DataError, nearest
from ...schemas.text import shown
from .messages import Chat, looks_written, parsed, read_chat, refuse_media, without_null, written_as_text
from .notes import Notes
from .rows import Row
from .storable import KEPT, fault_of, kept, kept_key, meant_as_text
from .template import ChatTemplate

DEFAULT_KEY = DataSection.model_fields["prompt_key"].default
CHAT_COLUMNS = ("messages", "conversations", "conversation")
"""Where data sets for fine-tuning keep conversations: taken when there is no column of the default name."""
TEXT_COLUMNS = ("question", "problem", "query", "instruction", "input", "text")
"""Where they keep questions: suggested only, as whether the model should see them bare is for people to say."""
NO_CHAT = Chat([], [])
COMPLETION = "completion"
"""Column in which a reward finds the answer that a conversation came with."""


class RenderedPrompt(NamedTuple):
    """A row ready to be tokenised."""

    location: str
    text: str
    special_tokens: bool
    """The tokenizer adds its own: true for plain text, false after a chat template, which wrote them already."""
    data_source: str
    ground_truth: Any
    extra: dict[str, Any]
    messages: list[dict[str, Any]] | None = None
    """Of a chat."""


class Prompts:
    """Renders the rows of one data set."""

    def __init__(
        self, prompt_key: str, template: ChatTemplate, notes: Notes, tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """`tools`: of the run's environment, shown with every prompt instead of what the row describes."""
        self._prompt_key, self._offered = prompt_key, list(tools)
        self._template = template
        self._notes = notes

    def render(self, row: Row) -> RenderedPrompt:
        """Text goes to the model as it is; chat messages pass through the model's template, up to the assistant's
        turn."""
        values = dict(row.values)
        key = self._column(row.location, values)
        refuse_media(row.location, values)
        prompt = values.pop(key)
        messages = written_as_text(prompt) if isinstance(prompt, str) else None
        if messages is not None:
            self._notes.add(f"column {key!r} holds conversations written as text: they are read as such", row.location)
            prompt = messages
        elif isinstance(prompt, str) and looks_written(prompt):
            self._notes.add(
                f"column {key!r} holds what begins like a conversation and cannot be read as one: the model sees the "
                "text itself",
                row.location,
            )
        if not isinstance(prompt, list):
            prompt = _needed(row.location, key, prompt)
        plain = isinstance(prompt, str)
        chat = NO_CHAT if plain else self._chat(row, key, prompt)
        text = prompt if plain else self._laid_out(row, key, chat)
        if not text:
            raise DataError(f"{row.location}: column {key!r} is empty")
        source = _needed(row.location, "data_source", values.pop("data_source", None))
        if source is not None and not isinstance(source, str):
            raise DataError(f"{row.location}: data_source={shown(source)} must be text")
        ground_truth = _needed(row.location, "reward_model.ground_truth", _take_ground_truth(row.location, values))
        extra = dict(self._extra(row.location, name, value) for name, value in values.items())
        if chat.completion:
            extra.setdefault(COMPLETION, chat.completion)
        messages = None if plain else chat.messages
        return RenderedPrompt(row.location, text, plain, source or "", ground_truth, extra, messages)

    def _column(self, location: str, values: Mapping[str, Any]) -> str:
        if self._prompt_key in values:
            return self._prompt_key
        if self._prompt_key == DEFAULT_KEY:
            for name in CHAT_COLUMNS:
                if name in values:
                    self._notes.add(f"prompts are taken from column {name!r}, as there is no {DEFAULT_KEY!r}", location)
                    return name
        likely = [name for name in (*CHAT_COLUMNS, *TEXT_COLUMNS) if name in values]
        hint = f"; allowed: one of them, for example data.prompt_key={likely[0]}" if likely else ""
        raise DataError(
            f"{location}: no column {self._prompt_key!r} (data.prompt_key){nearest(self._prompt_key, values)}; columns "
            f"here: {', '.join(map(str, values))}{hint}"
        )

    def _chat(self, row: Row, key: str, value: Any) -> Chat:
        messages, completion = read_chat(row.location, key, value, row.columnar)
        if completion:
            self._notes.add(
                "conversations end with the assistant's answer: it is left out of the prompt, and rewards find it in "
                f"column {COMPLETION!r}",
                row.location,
            )
        return Chat(_needed(row.location, key, messages), _needed(row.location, key, completion))

    def _laid_out(self, row: Row, key: str, chat: Chat) -> str:
        where = f"{row.location}: column {key!r}"
        text = self._template.render(where, chat.messages, self._tools(row))
        if why := fault_of(text):
            raise DataError(f"{where}, laid out by the chat template, {why}; allowed: {KEPT}")
        return text

    def _tools(self, row: Row) -> list[Any] | None:
        """Those that the model may call, as data sets for agents describe them beside the conversation."""
        tools: Any = self._offered or row.values.get("tools")
        if isinstance(tools, str):
            tools = parsed(tools)
        if not isinstance(tools, list) or not tools or not all(isinstance(tool, Mapping) for tool in tools):
            return None
        if not self._template.shows_tools:
            whose = "the environment's tools are" if self._offered else "column 'tools' is"
            self._notes.add(f"{whose} not shown to the model: its chat template has no place for them", row.location)
            return None
        return list(_needed(row.location, "tools", without_null(tools, deep=row.columnar)))

    def _extra(self, location: str, column: str, value: Any) -> tuple[str, Any]:
        """Text with a character that cannot be stored is refused: a reward would be shown another text. What has no
        form in JSON was seldom meant for it."""
        name = kept_key(column)
        if name != column:
            self._notes.add(f"the name of a column {fault_of(column)}: it is spelt {name}", location)

        def leave_out(place: str, item: Any, why: str) -> None:
            if meant_as_text(item):
                _refuse(location, place, item, why)
            what = f"column {name!r} holds what cannot be kept: rewards see null in its place"
            self._notes.add(what, f"{location}: {place}={shown(item)} {why}")

        if column == "extra_info" and isinstance(value, str) and isinstance(found := parsed(value), Mapping):
            value = found
        return name, kept(value, name, leave_out)


def _needed(location: str, name: str, value: Any) -> Any:
    """The value as it is kept. Raises `DataError` for one that cannot be."""
    return kept(value, name, partial(_refuse, location))


def _refuse(location: str, name: str, item: Any, why: str) -> NoReturn:
    raise DataError(f"{location}: {name}={shown(item)} cannot be kept: it {why}; allowed: {KEPT}")


def _take_ground_truth(location: str, values: dict[str, Any]) -> Any:
    """Takes it out of `reward_model`; what else that column holds stays in the row's extra columns."""
    reward_model = values.pop("reward_model", None)
    if isinstance(reward_model, str):
        reward_model = parsed(reward_model) if reward_model else None
    if reward_model is None:
        return values.get("ground_truth")
    if not isinstance(reward_model, Mapping):
        raise DataError(f"{location}: reward_model={shown(reward_model)} must be an object with a ground_truth")
    rest = {name: item for name, item in reward_model.items() if name != "ground_truth"}
    if rest:
        values["reward_model"] = rest
    return reward_model.get("ground_truth", values.get("ground_truth"))
