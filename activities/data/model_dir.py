"""The model directory, checked before anything loads it: code, weights, tokenizer, and room for prompt and answer."""

from pathlib import Path
from typing import Any

from ...schemas.config import RunConfig
from ...schemas.errors import ModelError, one_line
from ...schemas.text import shown
from ..library import loading
from ..weights.contents import quantised, read_contents, require_fit, weight_files
from ..weights.described import CONFIG, described_model
from ..weights.folder import read_object
from .context import longest_context
from .engine_support import require_engine_support
from .tokenizer import load_tokenizer

GENERATION = "generation_config.json"
ADAPTER = "adapter_config.json"


def check_model(config: RunConfig) -> None:
    """Raises `ModelError`. Runs the folder's own code where that is allowed, loads the tokenizer, not the weights."""
    folder = _folder(config.model.path)
    values = read_object(folder / CONFIG)
    _refuse_quantised(folder, values)
    contents = read_contents(weight_files(folder))
    model = described_model(config.model)
    described = model.config
    _refuse_encoder(folder, values, described)
    _refuse_multimodal(folder, type(model).__name__, described)
    _check_generation(folder)
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    _check_context(config, described)
    vocabulary = getattr(described.get_text_config(), "vocab_size", None)
    if vocabulary is not None and len(tokenizer) > vocabulary:
        raise ModelError(
            f"model.path={config.model.path}: the tokenizer has {len(tokenizer)} tokens, the model only "
            f"vocab_size={vocabulary}; allowed: a tokenizer that belongs to the model"
        )
    require_engine_support(config.model.path, model)
    require_fit(folder, model, contents)


def _folder(path: str) -> Path:
    folder = Path(path)
    try:
        found = folder.is_dir()
    except OSError as error:  # longer than a name may be
        raise ModelError(f"model.path={shown(path)} cannot be looked up: {error.strerror}") from error
    if not found:
        raise ModelError(
            f"model.path={path} is not a directory (looked at {folder.absolute()}); allowed: a folder of this machine. "
            "What the Hub has is downloaded first, for example with `hf download NAME --local-dir FOLDER`"
        )
    if (folder / CONFIG).is_file():
        return folder
    if (folder / ADAPTER).is_file():
        raise ModelError(f"model.path={path} holds an adapter ({ADAPTER}); allowed: the model that it was merged into")
    if (folder / "snapshots").is_dir():
        copies = sorted(f"model.path={one}" for one in (folder / "snapshots").iterdir())
        raise ModelError(f"model.path={path} is the Hub's cache; allowed: {' or '.join(copies) or 'a model in it'}")
    return folder


def _refuse_encoder(folder: Path, values: dict[str, Any], described: Any) -> None:
    """The library makes a causal LM of these as well, of a decoder that needs its encoder, or one that sees what comes
    after a token. `described` no longer says so of the first."""
    with loading:
        from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    kind = described.model_type
    if values.get("is_encoder_decoder"):
        why = f"an encoder with a decoder (model_type {kind})"
    elif kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(described, "is_decoder", False):
        why = f"an encoder (model_type {kind}, without is_decoder), which sees what comes after a token"
    else:
        return
    raise ModelError(f"model.path={folder} is {why}; allowed: a causal language model")


def _refuse_multimodal(folder: Path, kind: str, described: Any) -> None:
    """The library calls these causal LMs, too: all of the model, with what sees images or hears."""
    with loading:
        from transformers.models.auto import modeling_auto as auto

    if kind not in auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.values():
        return
    text = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(described.get_text_config().model_type)
    advice = f", such as its text model alone, saved as {text}" if text not in (None, kind) else ""
    raise ModelError(
        f"model.path={folder} is a multimodal model (model_type {described.model_type}, {kind}); allowed: a model of "
        f"text{advice}"
    )


def _check_generation(folder: Path) -> None:
    """Trainer and engine read it; what is no JSON, both leave out."""
    with loading:
        from transformers import GenerationConfig

        try:
            GenerationConfig.from_pretrained(folder, local_files_only=True)
        except OSError:
            return
        except (TypeError, ValueError, AttributeError) as error:
            raise ModelError(f"{folder / GENERATION} cannot be read: {one_line(error)}") from error


def _refuse_quantised(folder: Path, values: dict[str, Any]) -> None:
    parts = [part for part in (values, values.get("text_config")) if isinstance(part, dict)]
    for part in parts:
        for key in ("quantization_config", "compression_config"):
            if isinstance(found := part.get(key), dict):
                if not found:
                    raise ModelError(f"{folder / CONFIG}: {key}={{}} names no method; allowed: no such key")
                unnamed = "bitsandbytes" if any(name.startswith("load_in_") for name in found) else "an unnamed method"
                raise quantised(folder, found.get("quant_method", unnamed), f"{CONFIG}: {key}")


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
