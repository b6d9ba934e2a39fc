"""Whether conversations can be rendered piece by piece with a chat template, found out by rendering some both ways."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...schemas.config.agentic import ThinkingTemplate
from ...schemas.errors import ConversationRefused
from .layout import GREETING, TRIED_CALL, TRIED_RESULT, TRIED_TOOL, Arguments, Layout, Tools
from .messages import ASSISTANT, Said

SECOND, THIRD = Said("user", "Where does the river go?"), Said("user", "And then?")


class Finding(NamedTuple):
    """Something that a template does to a conversation that goes on."""

    allowed: tuple[ThinkingTemplate, ...]
    """What may be done about it."""
    sentence: str


class Scene(NamedTuple):
    """A conversation of three turns."""

    what_it_does: str
    """The template, if earlier turns read differently once this conversation goes on."""
    messages: tuple[Said, ...]
    tools: Tools | None = None


def _three_turns(first: str, second: str) -> tuple[Said, ...]:
    return (GREETING, Said(ASSISTANT, first), SECOND, Said(ASSISTANT, second), THIRD)


PLAIN = Scene("it renders earlier turns differently once the conversation goes on", _three_turns("Hi.", "To the sea."))
REASONING = Scene(
    "it drops the reasoning of earlier answers",
    _three_turns("<think>\nA greeting.\n</think>\n\nHi.", "<think>\nRivers flow.\n</think>\n\nTo the sea."),
)
WITH_TOOLS = Scene(
    "it renders the tools elsewhere once the conversation goes on", _three_turns("Hi.", "To the sea."), [TRIED_TOOL]
)
TOOL_RESULT = Scene(
    "it renders the turns before a tool's result differently once the conversation goes on",
    (GREETING, Said(ASSISTANT, "", calls=(TRIED_CALL,)), TRIED_RESULT, Said(ASSISTANT, "Water."), THIRD),
    [TRIED_TOOL],
)


def probe(layout: Layout, arguments: Arguments) -> tuple[Finding, ...]:
    """At most one finding per conversation that was tried. Raises `ConversationRefused` where a plain one cannot be
    rendered at all; that there are no tools in a template is no finding."""
    found = [*_findings(layout, PLAIN, arguments), *_findings(layout, REASONING, arguments)]
    for scene in (WITH_TOOLS, TOOL_RESULT):
        try:
            found += _findings(layout, scene, arguments)
        except ConversationRefused:  # as will be every request that asks for it
            continue
    return tuple(found)


def _findings(layout: Layout, scene: Scene, arguments: Arguments) -> list[Finding]:
    for known, answer, appended in _exchanges(scene.messages):
        sent = layout.text(known, scene.tools, arguments)
        whole = layout.text([*known, answer, *appended], scene.tools, arguments)
        try:
            piece = layout.following(answer.calls, appended, scene.tools, arguments)
        except ConversationRefused as error:
            return [Finding((ThinkingTemplate.FORK,), str(error))]
        if layout.tokens(whole)[-len(piece) :] != piece:
            return [_depends_on_place(layout, piece, whole)]
        if not whole.startswith(sent):
            return [_rewrites(scene, sent, whole)]
        answered = whole[len(sent) :].lstrip()
        as_sampled = answered.startswith(answer.text) and (
            # How a call is written is the template's affair, text is not.
            bool(answer.calls) or layout.tokens(answered[len(answer.text) :]) == [*layout.closing[:-1], *piece]
        )
        if not as_sampled:
            return [_rewrites(scene, sent + answer.text + layout.tokenizer.decode(piece[:1], False), whole)]
    return []


def _exchanges(messages: Sequence[Said]) -> Iterator[tuple[Sequence[Said], Said, Sequence[Said]]]:
    """Each answer with what was said before it, and what is said before the next."""
    answers = [place for place, said in enumerate(messages) if said.role == ASSISTANT]
    for place, end in zip(answers, [*answers[1:], len(messages)], strict=True):
        yield messages[:place], messages[place], messages[place + 1 : end]


def _depends_on_place(layout: Layout, piece: Sequence[int], whole: str) -> Finding:
    written = layout.tokenizer.decode(list(piece), skip_special_tokens=False)
    sentence = (
        "what it writes between two answers depends on where in the conversation they stand: "
        f"{written!r} is not how {whole[-len(written) :]!r} reads there"
    )
    return Finding((ThinkingTemplate.FORK,), sentence)


def _rewrites(scene: Scene, sent: str, whole: str) -> Finding:
    parted = next((n for n, (a, b) in enumerate(zip(sent, whole, strict=False)) if a != b), min(len(sent), len(whole)))
    start = max(0, parted - 20)
    sentence = f"{scene.what_it_does}: {sent[start : parted + 40]!r} becomes {whole[start : parted + 40]!r}"
    return Finding((ThinkingTemplate.KEEP, ThinkingTemplate.FORK), sentence)
