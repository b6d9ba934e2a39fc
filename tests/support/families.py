"""A tiny random model of each family that transformers and vLLM share, with the tiny model's tokenizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.support.tiny_model import VOCABULARY, tiny_tokenizer

CONTEXT = 64
HEAD = 32
"""Numbers per attention head: the smallest that every CPU kernel of vLLM takes."""
PLAIN: Final[Mapping[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 2 * HEAD,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 96,
    "max_position_embeddings": CONTEXT,
    # The default is far from uniform, so that a wrong position or weight shows in the log-probs.
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
EXPERTS: Final[Mapping[str, Any]] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
TIED: Final[Mapping[str, Any]] = {"tie_word_embeddings": True}
WITH_HEAD: Final[Mapping[str, Any]] = {"head_dim": HEAD}

FAMILIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama": {},
    "qwen2": TIED,
    "qwen3": {**TIED, **WITH_HEAD},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 48, "decoder_sparse_step": 1},
    "qwen3_moe": {**EXPERTS, **WITH_HEAD, "norm_topk_prob": True},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32, "num_key_value_heads": 2},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32},
    "deepseek_v3": {
        "num_key_value_heads": 2,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_group": 2,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "topk_method": "noaux_tc",  # With the next, as the Hub has it: transformers knows no other, vLLM does.
        "scoring_func": "sigmoid",
        "kv_lora_rank": 32,
        "q_lora_rank": 32,
        "qk_nope_head_dim": HEAD,
        "qk_rope_head_dim": 16,
        "v_head_dim": HEAD,
    },
    "gemma2": {**TIED, **WITH_HEAD, "query_pre_attn_scalar": HEAD, "sliding_window": 32},
    "gemma3_text": {**TIED, **WITH_HEAD, "query_pre_attn_scalar": HEAD, "sliding_window": 32},
    "phi3": {"sliding_window": None},
    "gpt2": {**TIED, "n_embd": 2 * HEAD, "n_layer": 2, "n_head": 2, "n_positions": CONTEXT},
    "gpt_neox": {},
    "opt": {**TIED, "init_std": 0.3, "ffn_dim": 96, "word_embed_proj_dim": 2 * HEAD},
}
"""What a family's configuration needs beside those keys of `PLAIN` that it knows."""


def family_config(family: str, **changes: Any) -> Any:
    tokenizer = tiny_tokenizer(CONTEXT)
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    known = AutoConfig.for_model(family)
    # A key that it does not know would be kept all the same, and read by an engine.
    plain = {key: value for key, value in PLAIN.items() if hasattr(known, key)}
    return AutoConfig.for_model(family, **{**plain, **ids, **FAMILIES[family], **changes})


def make_family_model(family: str, folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Write model and tokenizer; returns the folder. Equal arguments give equal weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(family_config(family, **changes)).eval()
        for name, tensor in model.state_dict().items():
            if name.endswith("bias"):  # They begin at zero: one that is lost would not show.
                torch.nn.init.normal_(tensor, std=0.1)
    model.save_pretrained(folder)
    tiny_tokenizer(CONTEXT).save_pretrained(folder)
    return folder
