"""The longest context of a model, as vLLM derives it from the model's configuration; admission asks here.

`tests/compatibility/test_context.py` compares the two.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
"""How configurations of different families name it; the smallest counts."""
WINS = "model_max_length"
"""Counts whatever the others say."""
STRETCHED_ALREADY = frozenset({"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})
"""Kinds of rope scaling whose configurations name the context after the stretching."""


class Context(NamedTuple):
    tokens: int
    hint: str = ""
    """How it becomes longer, where that is not plain to see."""


def longest_context(config: Any) -> Context | None:
    """Of a configuration of `transformers`; `None` when it names none."""
    text = config.get_text_config()
    named = [value for key in KEYS if isinstance(value := getattr(text, key, None), int | float)]
    if not named:
        return None
    limit = getattr(text, WINS, None) or min(named)
    ropes, factor = list(_ropes(text)), 1.0
    for rope in ropes:
        if rope.get("rope_type") not in STRETCHED_ALREADY:
            factor = rope.get("factor", factor)
    # Gemma 3 names the stretched context too, under a kind that others multiply by.
    if "gemma3" not in text.model_type:
        limit *= factor or 1.0
    return Context(int(limit), _hint(int(limit), ropes))


def _ropes(config: Any) -> Iterator[Mapping[str, Any]]:
    """One for all layers, or one for each kind of layer."""
    found = getattr(config, "rope_parameters", None)
    if isinstance(found, dict) and found:
        kinds = list(found.values())
        yield from [one for one in kinds if one] if all(isinstance(one, dict | None) for one in kinds) else [found]


def _hint(limit: int, ropes: list[Mapping[str, Any]]) -> str:
    for rope in ropes:
        original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
        if rope.get("rope_type") == "yarn" and original and factor and limit < original * factor:
            return (
                f" (with rope_type yarn, max_position_embeddings in config.json is the context after the stretching; "
                f"factor {factor:g} over {original} makes {int(original * factor)})"
            )
    return ""
