"""The model directory, checked before anything loads it: weights, tokenizer, and room for prompt and answer."""

import json
from pathlib import Path
from typing import Any

from ...schemas.config import RunConfig
from ...schemas.errors import ModelError
from .tokenizer import load_tokenizer

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "seq_length")
"""How configurations of different families name the longest context."""


def check_model(config: RunConfig) -> None:
    """Raises `ModelError`. Loads the tokenizer, not the weights."""
    folder = Path(config.model.path)
    if not folder.is_dir():
        raise ModelError(f"model.path={config.model.path} is not a directory (looked at {folder.absolute()})")
    values = _read_json(folder / "config.json")
    _check_weights(folder)
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    _check_context(config, values)
    vocabulary = _find(values, ("vocab_size",))
    if vocabulary is not None and len(tokenizer) > vocabulary:
        raise ModelError(
            f"model.path={config.model.path}: the tokenizer has {len(tokenizer)} tokens, the model only "
            f"vocab_size={vocabulary}; allowed: a tokenizer that belongs to the model"
        )


def _check_weights(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        needed = sorted(set(_read_json(index).get("weight_map", {}).values()))
        missing = [name for name in needed if not (folder / name).is_file()]
        if missing:
            raise ModelError(f"model.path={folder} lacks {', '.join(missing)}, named in {index.name}")
    else:
        needed = sorted(file.name for file in folder.glob("*.safetensors") if file.stat().st_size)
    if not needed:
        found = ", ".join(sorted(file.name for file in folder.iterdir())) or "nothing"
        raise ModelError(f"model.path={folder} has no weights; expected *.safetensors, found {found}")
    for name in needed:
        _check_header(folder / name)


def _check_header(file: Path) -> None:
    """The table of contents and whether the file is as long as it says: a copy that was cut short is known by that."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np"):
            return
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file.name} in model.path={file.parent} is damaged: {error}") from error


def _check_context(config: RunConfig, values: dict[str, Any]) -> None:
    limit = _find(values, CONTEXT_KEYS)
    if limit is None or config.context_tokens <= limit:
        return
    data = config.data
    wanted = (
        f"rollout.max_model_len={config.rollout.max_model_len}"
        if config.rollout.max_model_len
        else f"data.max_prompt_length={data.max_prompt_length} + data.max_response_length={data.max_response_length} "
        f"= {config.context_tokens}"
    )
    raise ModelError(
        f"{wanted} is longer than the context of model.path={config.model.path}; allowed: at most {limit} tokens"
    )


def _find(values: dict[str, Any], keys: tuple[str, ...]) -> int | None:
    """Models that also see or hear keep the language model's numbers one level down."""
    for section in (values, values.get("text_config") or {}):
        for key in keys:
            if isinstance(section.get(key), int):
                return int(section[key])
    return None


def _read_json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise ModelError(f"model.path={file.parent} has no {file.name}") from error
    except (ValueError, OSError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{file} must hold a JSON object")
    return values
