"""The signatures that reward functions have, here and in veRL and TRL, and how a function of each is called.

Promise: the signature alone decides, at admission; one that fits none is refused naming those that do.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from inspect import Parameter
from typing import Any, NamedTuple, Protocol

from ...schemas.errors import RewardLoadError
from ...schemas.messages.rewards import RewardSample, SampleTurn
from ..user_code.load import takes_one

ALLOWED = (
    "f(sample), veRL's f(data_source, solution_str, ground_truth, extra_info) or "
    "f(data_sources, solution_strs, ground_truths, extra_infos), or TRL's f(prompts, completions, **columns)"
)
NOT_OFFERED = frozenset({"trainer_state", "environments", "log_extra", "log_metric"})
"""TRL hands these out; they belong to its trainer."""


OTHERS_NAMES = frozenset({"completion", "response", "responses", "text", "texts", "solution", "answer", "prediction"})
OTHERS_NAMES |= {
    "output",
    "outputs",
    "prompt",
    "prompts",
    "query",
    "queries",
    "messages",
    "conversation",
    "data",
    "state",
}
"""What a function's only parameter is called where it is given a text, or what another library has for a batch."""
LISTS = frozenset({"list", "sequence", "tuple", "iterable", "collection"})
NO_SAMPLES = frozenset({"str", "bytes", "int", "float", "bool", "none", "dict", "mapping", "mutablemapping"})
NO_SAMPLES |= {"list", "sequence", "tuple", "array", "ndarray", "tensor", "dataproto"}
"""Types by their names: an annotation may be no more than a text."""


class Shape(StrEnum):
    """What a function takes."""

    SAMPLE = "sample"
    """One `RewardSample`, or with reward.scope=group the list of them."""
    SAMPLES = "samples"
    """The list of them, by its annotation."""
    VERL = "verl"
    """veRL's columns of one sample, by name."""
    VERL_BATCH = "verl-batch"
    """The same columns as lists, as veRL's batch reward manager gives them."""
    TRL = "trl"
    """Prompts, completions and the data's columns as lists, by name."""

    @property
    def takes_lists(self) -> bool:
        return self in (Shape.SAMPLES, Shape.VERL_BATCH, Shape.TRL)


class Accepts(NamedTuple):
    """Parameters that can be given by name."""

    names: frozenset[str]
    required: frozenset[str]
    others: bool
    """It has `**kwargs`."""

    @classmethod
    def of(cls, signature: inspect.Signature) -> "Accepts":
        named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        found = {name: one for name, one in signature.parameters.items() if one.kind in named}
        required = frozenset(name for name, one in found.items() if one.default is Parameter.empty)
        others = any(one.kind is Parameter.VAR_KEYWORD for one in signature.parameters.values())
        return cls(frozenset(found), required, others)

    def chosen(self, offered: dict[str, Any]) -> dict[str, Any]:
        return offered if self.others else {name: value for name, value in offered.items() if name in self.names}


def recognise(named: str, signature: inspect.Signature | None, kwargs: dict[str, Any], key: str = "reward") -> Shape:
    """`named` is the function's key and value, `key` that of the reward. Raises `RewardLoadError`. A function without
    a signature to look at is taken for one of ours."""
    if signature is None:
        return Shape.SAMPLE
    accepts = Accepts.of(signature)
    _check_kwargs(key, named, signature, accepts, kwargs)
    positional = any(one.kind is Parameter.POSITIONAL_ONLY for one in signature.parameters.values())
    missing = accepts.required - kwargs.keys()
    for shape, offered in ((Shape.VERL, VERL), (Shape.VERL_BATCH, VERL_BATCH)):
        if LEADING[shape] in accepts.names and not positional and missing <= offered.keys():
            return shape
    if LEADING[Shape.TRL] in accepts.names and not positional:
        if unknown := sorted(missing & NOT_OFFERED):
            raise RewardLoadError(
                f"{named} takes {signature}: {', '.join(unknown)} of TRL's trainer is not offered here"
            )
        return Shape.TRL
    if not takes_one(signature, kwargs):
        raise RewardLoadError(f"{named} takes {signature}; allowed: {ALLOWED}")
    return _of_samples(named, signature)


def _of_samples(named: str, signature: inspect.Signature) -> Shape:
    """Of a function that takes one argument. Raises `RewardLoadError` for one that is written for another."""
    first = next(iter(signature.parameters.values()))
    if first.kind is Parameter.VAR_POSITIONAL and Accepts.of(signature).others:
        raise RewardLoadError(
            f"{named} takes {signature}, which does not say what, as behind a decorator without functools.wraps; "
            f"allowed: {ALLOWED}"
        )
    if first.annotation is Parameter.empty:
        if first.name in OTHERS_NAMES:
            raise RewardLoadError(
                f"{named} takes {signature}, and {first.name!r} would be given a whole RewardSample; allowed: "
                f"{first.name}: RewardSample where that is meant, {ALLOWED}"
            )
        return Shape.SAMPLE
    kind, inside = _kind(first.annotation)
    if kind in LISTS and inside not in NO_SAMPLES:
        return Shape.SAMPLES
    if kind in NO_SAMPLES:
        raise RewardLoadError(f"{named} takes {signature}: one {kind}, which may be anything; allowed: {ALLOWED}")
    return Shape.SAMPLE


def _kind(annotation: Any) -> tuple[str, str]:
    """The name of a type, and of what it holds, in small letters: `("list", "rewardsample")`."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    outer, _, inner = text.strip("'\" ").partition("[")
    return _last_part(outer), _last_part(inner.partition("[")[0].partition(",")[0].rstrip("]"))


def _last_part(name: str) -> str:
    return name.strip("'\" ").rpartition(".")[2].lower()


def columns_wanted(signature: inspect.Signature | None, kwargs: dict[str, Any]) -> frozenset[str]:
    """Columns of the data that a function of TRL's shape cannot do without."""
    assert signature is not None
    return Accepts.of(signature).required - kwargs.keys() - {"prompts", "completions", "completion_ids"}


def _info(sample: RewardSample) -> Any:
    """Text, as CSV has it, is left to the function that reads it."""
    given = sample.extra.get("extra_info") or {}
    return {**given, **_told(sample)} if isinstance(given, Mapping) else given


VERL: dict[str, Callable[[RewardSample], Any]] = {
    "data_source": lambda sample: sample.data_source,
    "solution_str": lambda sample: sample.response_text,
    "ground_truth": lambda sample: sample.ground_truth,
    "extra_info": _info,
}
"""veRL gives an empty dict where the data have none, and `num_turns` beside what they have."""
VERL_BATCH = {
    "data_sources": VERL["data_source"],
    "solution_strs": VERL["solution_str"],
    "ground_truths": VERL["ground_truth"],
    "extra_infos": VERL["extra_info"],
}
LEADING = {Shape.VERL: "solution_str", Shape.VERL_BATCH: "solution_strs", Shape.TRL: "completions"}
"""The parameter that tells a shape: nobody judges without the answer."""


def for_verl(sample: RewardSample) -> dict[str, Any]:
    return {name: of(sample) for name, of in VERL.items()}


def for_verl_batch(samples: Sequence[RewardSample]) -> dict[str, Any]:
    return {name: [of(sample) for sample in samples] for name, of in VERL_BATCH.items()}


def for_trl(samples: Sequence[RewardSample]) -> dict[str, Any]:
    """A conversation is judged as one: its prompt is the messages, its completion the assistant's message, or the
    messages of all turns."""
    rows = [columns_of(sample) for sample in samples]
    return {
        **{name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)},
        "prompts": [sample.prompt_text if sample.messages is None else sample.messages for sample in samples],
        "completions": [_completion(sample) for sample in samples],
        "completion_ids": [sample.response_ids for sample in samples],
    }


class Row(Protocol):
    """A sample, or the row of the data it comes from."""

    @property
    def data_source(self) -> str: ...
    @property
    def ground_truth(self) -> Any: ...
    @property
    def extra(self) -> dict[str, Any]: ...


def columns_of(row: Row) -> dict[str, Any]:
    """As the data have them; what veRL's form of a row nests is found under its own name."""
    nested = {"ground_truth": row.ground_truth, "data_source": row.data_source or None}
    return {**{name: value for name, value in nested.items() if value is not None}, **row.extra}


def _completion(sample: RewardSample) -> Any:
    if len(sample.turns) > 1:
        return list(_messages(sample.turns))
    answer = sample.turns[0].policy if sample.turns else sample.response_text
    return answer if sample.messages is None else [{"role": "assistant", "content": answer}]


def _messages(turns: Sequence[SampleTurn]) -> Iterator[dict[str, str]]:
    """What an outside agent said first is its own form of the prompt, which such a function has as `prompts`."""
    for number, turn in enumerate(turns):
        if number and turn.environment:
            yield {"role": "user", "content": turn.environment}
        yield {"role": "assistant", "content": turn.policy}


def _told(sample: RewardSample) -> dict[str, Any]:
    """Of the episode, for veRL's functions."""
    told: dict[str, Any] = {"num_turns": len(sample.turns)} if sample.turns else {}
    if sample.outcome_reward is not None:
        told["outcome_reward"] = sample.outcome_reward
    return {**told, **({"outcome_info": sample.outcome_info} if sample.outcome_info else {})}


def _check_kwargs(key: str, named: str, signature: inspect.Signature, accepts: Accepts, kwargs: dict[str, Any]) -> None:
    if not accepts.others and (unknown := sorted(kwargs.keys() - accepts.names)):
        raise RewardLoadError(f"{key}.kwargs.{unknown[0]}: {named} takes {signature}, which has no such argument")
    given = {*VERL, *VERL_BATCH, "prompts", "completions", "completion_ids"}
    if taken := sorted(kwargs.keys() & given):
        raise RewardLoadError(f"{key}.kwargs.{taken[0]} is given by the sample; allowed: other arguments of {named}")
