"""What has to change so that keys which were right one by one are right together. Called by `command.py`."""

from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from ....schemas.config import RunConfig
from ....schemas.config.without_effect import idle_keys
from . import target
from .given import nested
from .row import Verdict
from .translate import Translation

MICRO_BATCH = "actor.ppo_max_token_len_per_gpu"


def fit(translation: Translation) -> list[str]:
    """Changes `translation`; returns what was added, for people."""
    _leave_out_what_does_nothing(translation)
    return _long_sequences_fit(translation)


def _long_sequences_fit(translation: Translation) -> list[str]:
    """Theirs may be smaller: a micro-batch of theirs is cut by sequences, or a sequence over several GPUs."""
    values = translation.values
    parts = [values.get(key, target.default(key)) for key in ("data.max_prompt_length", "data.max_response_length")]
    has = values.get(MICRO_BATCH, target.default(MICRO_BATCH))
    if not all(isinstance(one, int) for one in (*parts, has)) or sum(parts) <= has:
        return []
    need = sum(parts)
    values[MICRO_BATCH] = need
    translation.sources.pop(MICRO_BATCH, None)
    return [f"{MICRO_BATCH}={need}: a micro-batch has to hold the longest sequence"]


def _leave_out_what_does_nothing(translation: Translation) -> None:
    """A key that another one makes idle is refused here, while they pass it over. One of ours stays, to be refused."""
    try:
        config = _unchecked(nested(translation.values))
    except ValidationError:
        return  # told with every other fault
    for idle in idle_keys(config):
        if source := translation.sources.pop(idle.key, None):
            del translation.values[idle.key]
            at, said = translation.lines.index(source), f"it has no effect without {idle.needs}"
            translation.lines[at] = replace(source, verdict=Verdict.NOT_NEEDED, said=said)


def _unchecked(values: dict[str, Any]) -> RunConfig:
    """Each section checked alone."""
    sections: dict[str, Any] = {}
    for name, field in RunConfig.model_fields.items():
        model: Any = field.annotation
        is_section = isinstance(model, type) and issubclass(model, BaseModel)
        sections[name] = model.model_validate(values.get(name, {})) if is_section else values.get(name, field.default)
    return RunConfig.model_construct(**sections)
