"""What has to change so that keys which were right one by one are right together. Called by `command.py`."""

from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from ....schemas.config import RunConfig
from ....schemas.config.algorithm import REWARD_ITSELF
from ....schemas.config.without_effect import idle_keys
from . import target
from .given import nested
from .row import Verdict
from .translate import Translation

FUNCTIONS, MAIN = "reward.functions", "main"
METRIC = "algorithm.filter_groups.metric"
MICRO_BATCH = "actor.ppo_max_token_len_per_gpu"


def fit(translation: Translation) -> list[str]:
    """Changes `translation`; returns what was added, for people."""
    _leave_out_what_does_nothing(translation)
    return [*_one_reward_among_several(translation), *_long_sequences_fit(translation)]


def _one_reward_among_several(translation: Translation) -> list[str]:
    """What goes beside the reward function makes it one of several. A penalty without one is no reward: that it has to
    be named is told with every other fault."""
    values = translation.values
    if FUNCTIONS not in values or not (function := values.get("reward.function")):
        values.pop(FUNCTIONS, None)
        return []
    own = {"function": function, **({"kwargs": kwargs} if (kwargs := values.get("reward.kwargs")) else {})}
    values[FUNCTIONS] = {MAIN: own, **values[FUNCTIONS]}
    for key in ("function", "kwargs"):
        values.pop(f"reward.{key}", None)
        if source := translation.sources.pop(f"reward.{key}", None):
            at = translation.lines.index(source)
            translation.lines[at] = replace(source, targets=(f"{FUNCTIONS}.{MAIN}.{key}",))
    added = [f"{FUNCTIONS}.{MAIN}={function}: the sum of both is the reward"]
    metric = values.get(METRIC, target.default(METRIC))
    if metric not in REWARD_ITSELF:
        values[METRIC] = f"{MAIN}/{metric}"
        added.append(f"{METRIC}={MAIN}/{metric}: it is a number of that function")
    return added


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
