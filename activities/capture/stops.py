"""At which tokens an engine ends a turn, as the model's folder says."""

import json
from collections.abc import Set
from pathlib import Path
from typing import Protocol

from ...schemas.errors import ModelError


class EndOfText(Protocol):
    eos_token_id: int | None


def stop_ids(folder: Path, tokenizer: EndOfText) -> Set[int]:
    """At which the engine ends a turn: the tokenizer's end of text, and what `generation_config.json` adds. Raises
    `ModelError` when there is none."""
    found = {tokenizer.eos_token_id} if tokenizer.eos_token_id is not None else set()
    file = folder / "generation_config.json"
    if file.exists():
        named = json.loads(file.read_text()).get("eos_token_id")
        found |= set(named if isinstance(named, list) else [] if named is None else [named])
    if not found:
        raise ModelError(f"model.path={folder} names no token at which a turn ends; expected eos_token_id")
    return found
