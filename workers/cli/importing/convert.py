"""From a value of theirs to a value of ours. Each function makes a converter for a row of the table."""

from collections.abc import Hashable, Mapping
from typing import Any

from .given import nested
from .row import Asked, Converted, Converter, NotHere, Nothing

ARGUMENTS = ".reward_kwargs."
MANAGERS = ("reward.active_managers", "reward.reward_manager.name", "reward_model.reward_manager")


def names(known: Mapping[Any, Any], otherwise: str = "") -> Converter:
    """Each value by the name it has here. What is not among them is handed on, and refused if the key does not take it;
    with `otherwise` it is refused at once."""

    def convert(asked: Asked) -> Converted:
        value = asked.value
        if isinstance(value, Hashable) and value in known:
            return Converted((known[value],), f"{value} is {known[value]} here")
        if otherwise:
            raise NotHere(otherwise)
        return Converted((value,))

    return convert


def only(*allowed: Any, otherwise: str) -> Converter:
    """The value as it is, when it is one of these."""

    def convert(asked: Asked) -> Converted:
        if asked.value not in allowed:
            raise NotHere(otherwise)
        return Converted((asked.value,))

    return convert


def none_at(*values: Any, why: str) -> Converter:
    """These values mean that nothing was set."""

    def convert(asked: Asked) -> Converted:
        if asked.value in values:
            raise Nothing(why)
        return Converted((asked.value,))

    return convert


def as_list(asked: Asked) -> Converted:
    value = asked.value
    return Converted(([value] if isinstance(value, str) else value,))


def twice(asked: Asked) -> Converted:
    return Converted((asked.value, asked.value))


def at_least(least: int, instead: int) -> Converter:
    """For keys that take any smaller number for the same as `instead`."""

    def convert(asked: Asked) -> Converted:
        if isinstance(asked.value, int) and asked.value < least:
            return Converted((instead,))
        return Converted((asked.value,))

    return convert


def share_of(total: str) -> Converter:
    """A ratio of another key's value becomes a number."""

    def convert(asked: Asked) -> Converted:
        ratio, whole = _number(asked.value), _number(asked.others.get(total))
        if ratio is None:
            raise NotHere("it is no number")
        if ratio == 0:
            raise Nothing("0 is no warm-up")
        if whole is None or whole < 1:
            raise NotHere(f"a ratio of steps whose number is not known: {total} is not set; set the steps themselves")
        return Converted((round(ratio * whole),), f"{asked.value} of {whole:g} steps")

    return convert


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def function_in_file(name_key: str) -> Converter:
    """A file and, in another key, the function in it: `path/to/file.py:function`. A `pkg://` module keeps its name."""

    def convert(asked: Asked) -> Converted:
        function = asked.others.get(asked.key.rpartition(".")[0] + "." + name_key) or "compute_score"
        return Converted((f"{str(asked.value).removeprefix('pkg://')}:{function}",))

    return convert


def arguments(asked: Asked) -> Converted:
    """All arguments beside this one, as the one mapping that they are here."""
    before = asked.key.partition(ARGUMENTS)[0] + ARGUMENTS
    given = {key: value for key, value in asked.others.items() if key.startswith(before)} | {asked.key: asked.value}
    return Converted((nested({key.removeprefix(before): value for key, value in given.items()}),))


def overlong(prefix: str, longest: str) -> Converter:
    """DAPO's penalty for long answers: from several keys below `prefix`, a function of our own."""

    def convert(asked: Asked) -> Converted:
        if not asked.value:
            raise Nothing("it is off")
        chosen = [asked.others.get(key) for key in MANAGERS]
        if not any("dapo" in one if isinstance(one, list) else one == "dapo" for one in chosen):
            raise Nothing("only the reward manager dapo heeds it, and that is not chosen")
        buffer = asked.others.get(f"{prefix}.len")
        length = asked.others.get(longest) or asked.others.get("data.max_response_length")
        if buffer is None or length is None:
            raise NotHere(f"{prefix}.len and {longest} or data.max_response_length have to be set as well")
        factor = asked.others.get(f"{prefix}.penalty_factor", 1.0)
        kwargs = {"max_response_length": length, "buffer_length": buffer, "factor": factor}
        return Converted(({"overlong": {"function": "overlong", "kwargs": kwargs}},))

    return convert
