"""The user's reward function, ready to judge samples. Made in each process that calls it, from a run's `reward.*`.

Promise: whatever the function's signature is, samples go in and one reading for each comes out.
"""

from functools import _lru_cache_wrapper
from inspect import Signature
from typing import Any, NamedTuple

from ...schemas.config import RewardScope, RewardSection
from ...schemas.errors import RewardLoadError
from ...schemas.messages.rewards import RewardSample
from ..user_code.load import UserFunction, is_async, load_function, signature_of
from ..user_code.prepared import Recipe
from .built_in.registry import built_in
from .reading import Reading, reading, readings
from .shapes import Accepts, Shape, columns_wanted, for_trl, for_verl, for_verl_batch, recognise


class Question(NamedTuple):
    """One call."""

    samples: tuple[RewardSample, ...]
    needed: str | None = None
    """A metric that must be returned."""


class About(NamedTuple):
    signature: str
    by_group: bool
    """One call sees all samples that are scored together."""
    columns: frozenset[str]
    """Of the data, those that it cannot do without."""


class Judge:
    def __init__(self, reward: RewardSection, key: str = "reward") -> None:
        """`key`: where the function stands in the configuration. Raises `RewardLoadError`."""
        named = _named(reward, key)
        ours = built_in(reward, key)
        self.at_once = ours.at_once if ours else None
        self.function: UserFunction = ours or load_function(f"{key}.function", reward.function, RewardLoadError)
        self.is_async = is_async(self.function)
        self.signature = signature_of(self.function)
        self._kwargs = {} if ours else reward.kwargs
        self.shape = Shape.SAMPLE if ours else recognise(named, self.signature, reward.kwargs, key)
        if self.shape is Shape.VERL and reward.scope is RewardScope.GROUP:
            raise RewardLoadError(
                f"{key}.scope=group, but {named} takes {self.signature}, one sample; allowed: {key}.scope=auto, or "
                "veRL's f(data_sources, solution_strs, ground_truths, extra_infos)"
            )
        if isinstance(self.function, _lru_cache_wrapper) and not _hashable(self.shape, self.signature):
            raise RewardLoadError(
                f"{named} is remembered by its arguments (functools.lru_cache), and would be given some that cannot be "
                "hashed; allowed: remember a function of texts that this one calls"
            )
        by_group = self.shape.takes_lists if reward.scope is RewardScope.AUTO else reward.scope is RewardScope.GROUP
        wanted = ours.columns if ours else frozenset[str]()
        if self.shape is Shape.TRL:
            wanted = columns_wanted(self.signature, reward.kwargs)
        self.about = About(str(self.signature), by_group, wanted)

    def ask(self, argument: Question) -> Any:
        match self.shape:
            case Shape.SAMPLE:
                given = list(argument.samples) if self.about.by_group else argument.samples[0]
                return self.function(given, **self._kwargs)
            case Shape.SAMPLES:
                return self.function(list(argument.samples), **self._kwargs)
            case Shape.VERL:
                return self._by_name(for_verl(argument.samples[0]))
            case Shape.VERL_BATCH:
                return self._by_name(for_verl_batch(argument.samples))
            case Shape.TRL:
                return self._by_name(for_trl(argument.samples))

    def read(self, argument: Question, returned: Any) -> list[Reading]:
        if self.about.by_group or self.shape.takes_lists:
            return readings(returned, len(argument.samples), argument.needed)
        return [reading(returned, argument.needed)]

    def _by_name(self, offered: dict[str, Any]) -> Any:
        assert self.signature is not None
        return self.function(**{**Accepts.of(self.signature).chosen(offered), **self._kwargs})


def recipe(reward: RewardSection, key: str = "reward") -> Recipe:
    return Recipe(Judge, (reward, key), _named(reward, key), RewardLoadError)


def _named(reward: RewardSection, key: str) -> str:
    return f"{key}.function={reward.function!r}"


def _hashable(shape: Shape, signature: Signature | None) -> bool:
    """Whether all that a function of this shape is given is text, as a rule."""
    return shape is Shape.VERL and signature is not None and "extra_info" not in signature.parameters
