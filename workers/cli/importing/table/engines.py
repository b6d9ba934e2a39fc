"""The libraries that train: `actor_rollout_ref.actor.fsdp_config.*`, Megatron and others, and what is set for each of
veRL's workers alike."""

from ..convert import names
from ..row import Switch, not_needed, not_supported, part, renamed, same

HERE = "actor_rollout_ref.actor."
FSDP = f"{HERE}fsdp_config."
OTHERS = {"megatron": "Megatron", "veomni": "VeOmni", "torchtitan": "TorchTitan"}
NUMBERS = names({"bfloat16": "bf16", "float32": "fp32"})

ROWS = (
    same("model_engine"),
    not_supported(
        f"{HERE}strategy",
        "training with a library other than PyTorch itself",
        "fsdp",
        "fsdp2",
        off_means="one process holds the whole model",
    ),
    *(not_supported(f"{HERE}{key}.*", f"training with {name}") for key, name in OTHERS.items()),
    *(
        renamed(f"{FSDP}{key}", "actor.precision", why="`bfloat16` becomes `bf16`, `float32` `fp32`", convert=NUMBERS)
        for key in ("dtype", "mixed_precision.param_dtype")
    ),
    *not_needed("gradients are summed in float32", f"{FSDP}mixed_precision.*"),
    not_supported(f"{FSDP}model_dtype", "master weights that are not float32", "fp32", "float32"),
    *(
        not_supported(f"{FSDP}{key}", "keeping weights or optimizer in host memory between steps", False)
        for key in ("param_offload", "optimizer_offload", "offload_policy", "grad_offload")
    ),
    not_supported(f"{FSDP}fsdp_size", "a trainer on several GPUs", -1, 1),
    *(
        not_supported(key, "splitting a sequence over GPUs", 1)
        for key in (f"{HERE}ulysses_sequence_parallel_size", f"{FSDP}ulysses_sequence_parallel_size")
    ),
    not_supported(f"{FSDP}full_determinism", "slower kernels that give the same result twice", False),
    *not_needed("trainer.seed says it", f"{FSDP}seed"),
    not_supported(f"{FSDP}qat.enable", "training for quantisation", False),
    *part(Switch(f"{FSDP}qat.enable", off=(False,)), "training for quantisation", f"{FSDP}qat.*"),
    *not_needed("one process holds the whole model", f"{FSDP}*"),
    not_supported(f"{HERE}profiler.enable", "profiles of the trainer", False),
    *part(Switch(f"{HERE}profiler.enable", off=(False,)), "profiles of the trainer", f"{HERE}profiler.*"),
    not_supported(f"{HERE}profile.use_profile", "profiles of the trainer", False),
    *part(Switch(f"{HERE}profile.use_profile", off=(False,)), "profiles of the trainer", f"{HERE}profile.*"),
    *part(
        Switch("actor_rollout_ref.rollout.profiler.enable", off=(False,)),
        "profiles of the engines",
        "actor_rollout_ref.rollout.profiler.*",
    ),
    *part(Switch("global_profiler.tool"), "profiles", "global_profiler.*", "actor_rollout_ref.profiler.*"),
    not_supported("actor_rollout_ref.ref.model", "a reference model other than version 0"),
    not_supported("actor_rollout_ref.ref.model.path", "a reference model other than version 0"),
    *not_needed("the reference is version 0, and computed as the policy is", "actor_rollout_ref.ref.*"),
    *not_needed("trainer and engines are processes of their own", "actor_rollout_ref.hybrid_engine"),
    *not_needed("one process, no collective operations", "actor_rollout_ref.nccl_timeout"),
)
