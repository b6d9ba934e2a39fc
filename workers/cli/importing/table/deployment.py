"""`psrl.deployment.*`, nodes and GPUs."""

from ..row import Switch, not_needed, not_supported, part, same

HERE = "psrl.deployment."
MIXED = Switch(f"{HERE}heterogeneous_rollout.enable", off=(False,))
ELASTIC = Switch(f"{HERE}elastic_rm.enable", off=(False,))

ROWS = (
    same(f"{HERE}n_rollout_instances"),
    not_supported(f"{HERE}rollout_nnodes_per_instance", "an engine on several nodes", 1),
    not_supported(f"{HERE}rollout_ngpus_per_node_per_instance", "an engine on several GPUs", 1),
    *not_needed(
        "validation prompts go to the rollout instances, beside training ones",
        f"{HERE}n_validate_instances",
        f"{HERE}validate_nnodes_per_instance",
        f"{HERE}validate_ngpus_per_node_per_instance",
    ),
    not_supported(f"{HERE}train_nnodes", "a trainer on several nodes", 1),
    not_supported(f"{HERE}train_ngpus_per_node", "a trainer on several GPUs", 1),
    *not_needed("each process runs where it was started", f"{HERE}total_nnodes"),
    not_supported(f"{HERE}heterogeneous_rollout.enable", "instances of different sizes", False),
    *part(MIXED, "instances of different sizes", f"{HERE}heterogeneous_rollout.*"),
    not_supported(f"{HERE}elastic_rm.enable", "sharing GPUs between rollout and a reward model", False),
    *part(ELASTIC, "sharing GPUs between rollout and a reward model", f"{HERE}elastic_rm.*"),
)
