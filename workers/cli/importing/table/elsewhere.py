"""Sections that have no counterpart as a whole."""

from ..row import Switch, not_needed, not_supported, part

ROWS = (
    *not_needed("`grpo` and `rloo` have no critic", "critic.*"),
    not_supported("distillation.enabled", "distillation from a teacher", False),
    *part(Switch("distillation.enabled", off=(False,)), "distillation from a teacher", "distillation.*"),
    *not_needed("batches are in PostgreSQL", "transfer_queue.*"),
    *(
        part(
            Switch(f"skip.{kind}.enable", off=(False,)),
            "stored answers in the place of generated ones",
            f"skip.{kind}.*",
        )[0]
        for kind in ("rollout", "async_rollout", "rollout_tq")
    ),
    *not_needed("there is no Ray", "ray_kwargs.*", "ray_init.*"),
    *not_needed("Hydra's own", "hydra.*", "*._target_", "*._recursive_"),
)
