"""`actor_rollout_ref.model.*`: which weights to start from."""

import re

from ..row import Asked, Converted, NotHere, Switch, not_needed, not_supported, part, renamed

HERE = "actor_rollout_ref.model."
LORA, LORA_OF_MEGATRON = Switch(f"{HERE}lora_rank", off=(0,)), Switch(f"{HERE}lora.rank", off=(0,))
CONFIG = "changes of the model's configuration; edit config.json in its directory"


def template_file(asked: Asked) -> Converted:
    if not str(asked.value).endswith(".jinja"):
        raise NotHere("the text of a template; write it into a file that ends in .jinja")
    return Converted((asked.value,))


def place(asked: Asked) -> Converted:
    may_be_on_the_hub = isinstance(asked.value, str) and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", asked.value)
    return Converted(
        (asked.value,), "a directory here; a model on the Hub is downloaded first" if may_be_on_the_hub else ""
    )


ROWS = (
    renamed(
        f"{HERE}path", "model.path", why="a directory: what is on the Hub has to be downloaded first", convert=place
    ),
    renamed(f"{HERE}trust_remote_code", "model.trust_remote_code"),
    not_supported(f"{HERE}tokenizer_path", "a tokenizer from elsewhere; put its files into the model's directory"),
    not_supported(f"{HERE}hf_config_path", "a configuration from elsewhere; put it into the model's directory"),
    renamed(
        f"{HERE}custom_chat_template",
        "data.chat_template",
        why="a file that ends in `.jinja`, where veRL has the text itself",
        convert=template_file,
    ),
    not_supported(f"{HERE}external_lib", "importing a module before the model is loaded"),
    *(
        not_supported(f"{HERE}override_config.{key}", CONFIG, 0)
        for key in ("attention_dropout", "embd_pdrop", "resid_pdrop")
    ),
    not_supported(f"{HERE}override_config", CONFIG),
    not_supported(f"{HERE}override_config.model_config", CONFIG),
    not_supported(f"{HERE}override_config.moe_config.freeze_moe_router", "training without a model's router", False),
    not_supported(f"{HERE}override_config.*", CONFIG),
    not_supported(f"{HERE}enable_gradient_checkpointing", "recomputing activations to save memory", False),
    *part(
        Switch(f"{HERE}enable_gradient_checkpointing", off=(False,)),
        "recomputing activations to save memory",
        f"{HERE}gradient_checkpointing_kwargs.*",
    ),
    not_supported(f"{HERE}enable_activation_offload", "keeping activations in host memory", False),
    not_supported(f"{HERE}lora_rank", "LoRA", 0),
    *part(
        LORA,
        "LoRA",
        *(f"{HERE}{key}" for key in ("lora_alpha", "target_modules", "exclude_modules", "lora_adapter_path")),
    ),
    not_supported(f"{HERE}lora.rank", "LoRA", 0),
    *part(LORA_OF_MEGATRON, "LoRA", f"{HERE}lora.*"),
    *part(Switch(f"{HERE}mtp.enable", off=(False,)), "layers that predict several tokens", f"{HERE}mtp.*"),
    *not_needed(
        "a matter of speed and memory, not of the result",
        *(f"{HERE}{key}" for key in ("use_remove_padding", "use_liger", "use_fused_kernels", "fused_kernel_options.*")),
        *(f"{HERE}{key}" for key in ("fused_kernel_options", "tiled_mlp.*", "use_shm")),
    ),
)
