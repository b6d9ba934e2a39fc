"""Messages go into histories, whose payloads are limited: they hold ids and counts, never tokens, texts or tensors."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from psrl.schemas import messages
from psrl.schemas.config.psrl import MAX_LIVE_GROUPS
from psrl.schemas.ids import Version, training_group
from psrl.schemas.messages.base import Message
from psrl.schemas.messages.data import KeptGroup, Restored
from psrl.schemas.messages.rollout import TurnFailure
from psrl.workflows.ledger import Ledger
from psrl.workflows.run.groups import Groups
from psrl.workflows.run.state import RunState

PAYLOAD_BYTES = 2 << 20
"""More is refused by Temporal."""

ONE_PER_GROUP_OR_VERSION = {"evaluations", "indices", "places", "redraw", "tags", "trained_ahead", "versions"}
"""Series of numbers that do not grow with the length of an answer."""
WITH_THE_COORDINATOR = {"blocks", "generated_tokens", "prompt_tokens", "sampled", "tokens"}
"""Series that only its callers fill, on their way to it: they are in no history."""


def all_messages() -> list[type[Message]]:
    """Of the package whose models pass Temporal; others (a weight manifest) go from file to file."""
    for module in pkgutil.iter_modules(messages.__path__):
        importlib.import_module(f"{messages.__name__}.{module.name}")
    found, waiting = [], [Message]
    while waiting:
        below = waiting.pop().__subclasses__()
        found += below
        waiting += below
    return [message for message in found if message.__module__.startswith(messages.__name__)]


def inside(annotation: Any) -> Iterator[Any]:
    """The annotation and everything it is made of."""
    yield annotation
    for part in get_args(annotation):
        yield from inside(part)


def is_series_of_numbers(annotation: Any) -> bool:
    """Also of ids that are numbers. A mapping from names to counts is none."""
    plain = {getattr(part, "__supertype__", part) for part in inside(annotation)}
    return get_origin(annotation) in (list, tuple, set, frozenset) and bool(plain & {int, float})


@pytest.mark.parametrize("message", all_messages(), ids=lambda message: message.__name__)
def test_no_message_can_hold_tokens_or_bytes(message: type[Message]) -> None:
    for name, field in message.model_fields.items():
        parts = list(inside(field.annotation))
        assert bytes not in parts, name
        if name not in ONE_PER_GROUP_OR_VERSION | WITH_THE_COORDINATOR:
            assert not any(is_series_of_numbers(part) for part in parts), name


def test_the_largest_state_that_a_configuration_allows_fits_a_payload() -> None:
    ledger = Ledger(staleness=1, batch_groups=MAX_LIVE_GROUPS // 2, offered_groups=MAX_LIVE_GROUPS // 2)
    groups = [training_group(900_000 + number) for number in range(MAX_LIVE_GROUPS)]
    ledger.reserve(Version(0), groups)
    for group in groups[::2]:
        ledger.occupy(group)
    started = dict.fromkeys(groups, 1_790_000_000.123456)
    state = RunState.model_construct(admission=None, groups=Groups(ledger=ledger, started_at=started))
    kept = tuple(KeptGroup(group_id=group, version_tag=100_000) for group in groups)
    restored = Restored.model_construct(kept=kept, redraw=(), unfinished=())
    for message in (state, restored):
        assert len(message.model_dump_json(warnings=False)) < PAYLOAD_BYTES / 1.5


def test_the_check_sees_tokens_and_log_probs() -> None:
    class Bad(BaseModel):
        tokens: tuple[int, ...]
        logprobs: list[float | None]
        by_reason: dict[str, int]

    found = {name: any(map(is_series_of_numbers, inside(field.annotation))) for name, field in Bad.model_fields.items()}
    assert found == {"tokens": True, "logprobs": True, "by_reason": False}


def test_a_failure_that_an_engine_told_in_any_text_still_makes_a_message() -> None:
    """A message that cannot be sent is a call that is repeated for ever."""
    told = TurnFailure(type="EngineDeadError", message="\0 and \ud800" + "x" * 5000, retryable=True)
    sent = TurnFailure.model_validate_json(told.model_dump_json())
    assert sent.message.startswith(r"\x00 and \ud800xxx")
    assert len(sent.message) == 1000
