"""The trainer's state: weights, optimizer, random numbers, version, and where it comes from.

Master weights and optimizer state are float32 whatever the precision of the matrix products. Dropout is never on: the
policy that is trained must be the function that the engine samples from, or every ratio is noise.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from ...activities.weights.described import INDEX, described_model
from ...activities.weights.names import by_file_name, named_by_configuration
from ...schemas.config import Precision, RolloutDtype, RunConfig
from ...schemas.errors import ModelError, one_line
from .generation_settings import keep_generation_settings

PUBLISHED = {RolloutDtype.FP32: torch.float32, RolloutDtype.BF16: torch.bfloat16}


@dataclass
class TrainerState:
    config: RunConfig
    model: Any
    optimizer: torch.optim.Optimizer
    version: int
    """Updates in `model` so far."""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def precision(self) -> AbstractContextManager[object]:
        """Number format of the matrix products."""
        bf16 = self.config.actor.precision is Precision.BF16
        context: AbstractContextManager[object] = torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=bf16)
        return context

    def published_tensors(self) -> dict[str, Tensor]:
        """By their names in plain checkpoints, in the engine's number format; a tied tensor is there once."""
        dtype = PUBLISHED[self.config.rollout.dtype]
        return {
            name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous()
            for name, tensor in by_file_name(self.model, self.model.state_dict()).items()
        }

    def with_published(self, tensors: Mapping[str, Tensor]) -> Any:
        """A second model of float32 from what was published; it may lie in the memory of the tensors."""
        model = type(self.model).from_pretrained(
            None,
            config=self.model.config,
            state_dict=dict(tensors),
            dtype=torch.float32,
            attn_implementation=_attention(self.model.config),
        )
        return model.to(self.device).eval()


class Loaded(NamedTuple):
    model: Any
    ignored: tuple[str, ...]
    """Tensors of the files that the model does not have."""


def initial_state(config: RunConfig, model: Any) -> TrainerState:
    """Version 0, around the model of `model.path`."""
    torch.manual_seed(config.trainer.seed)
    return TrainerState(config, model, make_optimizer(model, config), version=0)


def load_model(folder: Path, config: RunConfig, device: torch.device) -> Loaded:
    """Raises `ModelError` when the folder is no causal LM that we can train, naming the tensor that does not fit."""
    if not folder.is_dir():
        raise ModelError(f"model.path={str(folder)!r} is no directory")
    described = described_model(config.model.model_copy(update={"path": str(folder)}))
    if (folder / INDEX).is_file():
        described.config.transformers_weights = INDEX  # Else a single file beside it wins.
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder,
            config=described.config,
            dtype=torch.float32,
            attn_implementation=_attention(described.config),
            local_files_only=True,
            trust_remote_code=config.model.trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # Refused below: the library's own error does not name them.
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ModelError(f"model.path={str(folder)!r} cannot be loaded as a causal LM: {one_line(error)}") from error
    misfits = [
        f"tensor {name!r} is {list(found)}, expected {list(expected)} by config.json"
        for name, found, expected in sorted(loading["mismatched_keys"])
    ] + [f"tensor {name!r} is missing" for name in sorted(loading["missing_keys"])]
    if misfits:
        raise ModelError(f"model.path={str(folder)!r} does not hold the model it describes: {misfits[0]}")
    vars(model.config).pop("transformers_weights", None)  # It would be written into checkpoints, and lead nowhere.
    named_by_configuration(model)
    keep_generation_settings(model, folder)
    _refuse_untied(folder, model, described)
    return Loaded(model.to(device).eval(), tuple(sorted(loading["unexpected_keys"])))


def _attention(config: Any) -> str | None:
    """The library's fast attention leaves out the cap on attention scores, without a word; null is its own choice."""
    return "eager" if getattr(config.get_text_config(), "attn_logit_softcapping", None) else None


def _refuse_untied(folder: Path, model: Any, described: Any) -> None:
    """The library leaves two tensors untied that the configuration ties, when the files hold different values for
    them. An engine goes by the configuration."""
    expected, found = (by_file_name(one, one.state_dict()).keys() for one in (described, model))
    untied = found - expected
    if untied:
        raise ModelError(
            f"model.path={str(folder)!r} does not hold the model it describes: tensor {min(untied)!r} has values of "
            "its own, while config.json ties it to another; allowed: tie_word_embeddings false, or files without it"
        )


def load_tokenizer(config: RunConfig) -> Any:
    """Raises `ModelError`."""
    try:
        return AutoTokenizer.from_pretrained(
            config.model.path, local_files_only=True, trust_remote_code=config.model.trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"model.path={config.model.path!r} has no tokenizer that can be loaded: {error}") from error


def make_optimizer(model: Any, config: RunConfig) -> torch.optim.Optimizer:
    optim = config.actor.optim
    return torch.optim.AdamW(
        model.parameters(), lr=optim.lr, betas=optim.betas, weight_decay=optim.weight_decay, fused=True
    )
