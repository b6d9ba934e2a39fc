"""The model directory, checked before anything loads it: code, weights, tokenizer, and room for prompt and answer."""

import json
from pathlib import Path
from typing import Any

from ...schemas.config import RunConfig
from ...schemas.errors import ModelError
from ..weights.described import INDEX, described_model
from .context import longest_context
from .tokenizer import load_tokenizer

SINGLE = "model.safetensors"
"""Holds the model where there is no index. Other files in the folder are none of its weights."""
QUANTISED_TYPES = ("F8_", "F4")
"""Number formats that only quantised weights have."""
QUANTISED_NAMES = ".qweight"
"""How GPTQ and AWQ name packed weights; older folders of theirs do not say so in config.json."""


def check_model(config: RunConfig) -> None:
    """Raises `ModelError`. Runs the folder's own code where that is allowed, loads the tokenizer, not the weights."""
    folder = Path(config.model.path)
    if not folder.is_dir():
        raise ModelError(f"model.path={config.model.path} is not a directory (looked at {folder.absolute()})")
    values = _read_json(folder / "config.json")
    _refuse_quantised(folder, values)
    _check_weights(folder)
    described = described_model(config.model).config
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    _check_context(config, described)
    vocabulary = getattr(described.get_text_config(), "vocab_size", None)
    if vocabulary is not None and len(tokenizer) > vocabulary:
        raise ModelError(
            f"model.path={config.model.path}: the tokenizer has {len(tokenizer)} tokens, the model only "
            f"vocab_size={vocabulary}; allowed: a tokenizer that belongs to the model"
        )


def _check_weights(folder: Path) -> None:
    index = folder / INDEX
    if index.is_file():
        needed = sorted(set(_read_json(index).get("weight_map", {}).values()))
        missing = [name for name in needed if not (folder / name).is_file()]
        if missing:
            raise ModelError(f"model.path={folder} lacks {', '.join(missing)}, named in {index.name}")
    else:
        needed = [SINGLE] if (folder / SINGLE).is_file() else []
    if not needed:
        found = ", ".join(sorted(file.name for file in folder.iterdir())) or "nothing"
        raise ModelError(f"model.path={folder} has no weights; expected {SINGLE} or {INDEX}, found {found}")
    for name in needed:
        _check_header(folder / name)


def _check_header(file: Path) -> None:
    """The table of contents and whether the file is as long as it says: a copy that was cut short is known by that."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as tensors:
            formats = {name: tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file.name} in model.path={file.parent} is damaged: {error}") from error
    for name, number_format in formats.items():
        if number_format.startswith(QUANTISED_TYPES):
            raise _quantised(file.parent, number_format, f"{file.name}: {name}")
        if name.endswith(QUANTISED_NAMES):
            raise _quantised(file.parent, "GPTQ or AWQ", f"{file.name}: {name}")


def _refuse_quantised(folder: Path, values: dict[str, Any]) -> None:
    parts = [part for part in (values, values.get("text_config")) if isinstance(part, dict)]
    for part in parts:
        for key in ("quantization_config", "compression_config"):
            if isinstance(found := part.get(key), dict) and found:
                unnamed = "bitsandbytes" if any(name.startswith("load_in_") for name in found) else "an unnamed method"
                raise _quantised(folder, found.get("quant_method", unnamed), f"config.json: {key}")


def _quantised(folder: Path, method: str, where: str) -> ModelError:
    return ModelError(
        f"model.path={folder} is quantised with {method} ({where}); weights to be trained must be unquantised"
    )


def _check_context(config: RunConfig, described: Any) -> None:
    limit = longest_context(described)
    if limit is None or config.context_tokens <= limit.tokens:
        return
    data = config.data
    wanted = (
        f"rollout.max_model_len={config.rollout.max_model_len}"
        if config.rollout.max_model_len
        else f"data.max_prompt_length={data.max_prompt_length} + data.max_response_length={data.max_response_length} "
        f"= {config.context_tokens}"
    )
    raise ModelError(
        f"{wanted} is longer than the context of model.path={config.model.path}; allowed: at most {limit.tokens} "
        f"tokens{limit.hint}"
    )


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
