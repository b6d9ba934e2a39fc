"""`data.*`: where prompts come from."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from yaml import YAMLError, safe_load

from .base import Section

TEMPLATE_SUFFIX = ".jinja"
"""A chat template that is called so is a file."""


def as_files(value: Any) -> Any:
    """One file needs no list around it; a list may be a text, as it is in a variable or on Hydra's command line."""
    if isinstance(value, str):
        value = _listed(value.strip()) or [value]
    if isinstance(value, list | tuple) and any(isinstance(one, str) and not one.strip() for one in value):
        raise ValueError("an entry is empty; allowed: files, patterns and folders")
    return value


def _listed(text: str) -> Any:
    try:
        return safe_load(text) if text.startswith("[") and text.endswith("]") else None
    except YAMLError:  # the pattern of a file's name
        return None


Files = Annotated[tuple[str, ...], BeforeValidator(as_files)]


class DataSection(Section):
    train_files: Files = ()
    """Files, patterns (`data/train-*.parquet`) or folders, read in this order. Required."""
    val_files: Files = ()
    """The same for validation; empty means no validation."""
    prompt_key: str = "prompt"
    """Column with the prompt: text, or a list of chat messages."""
    chat_template: str | None = None
    """Lays out chat messages: the name of one of the tokenizer's templates, or a file that ends in `.jinja`; null takes
    the tokenizer's default."""
    max_prompt_length: int = Field(default=1024, ge=1)
    """Tokens; longer prompts are skipped and counted, never truncated."""
    max_response_length: int = Field(default=512, ge=1)
    """Tokens that may follow the prompt of a trajectory: the model samples them, and in several turns an environment
    adds its own."""
    shuffle: bool = True
    """Shuffle each epoch by `data.seed`; false keeps file order."""
    seed: int = 1
    """Order of prompts: epoch e uses a permutation derived from (seed, e)."""
    val_max_samples: int | None = Field(default=None, ge=1)
    """How many validation prompts are used, from the first; null uses all."""
