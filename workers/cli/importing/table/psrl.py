"""`psrl.*`: staleness, weights, filters. Coordination, deployment and the parts around them have files of their own."""

from ..convert import names
from ..row import Switch, not_needed, not_supported, part, same

LMCACHE = Switch("psrl.lmcache.enable", off=(False,))
TMS = Switch("psrl.tms.range")
OVERLAP = Switch("psrl.fine_grain_overlap.granularity", off=("none",))
RDMA = Switch("psrl.ps_mode", on=("nixl_cpu", "nixl_gpu"))

ROWS = (
    same("psrl.staleness"),
    same("psrl.staleness_buffer_entries"),
    same("psrl.rollout_n"),
    same(
        "psrl.ps_mode",
        "`cpu_ref` becomes `file`",
        names({"cpu_ref": "file"}, "weights over RDMA; they travel as files that trainer and engines share"),
    ),
    *not_needed(
        "the processes of a stack find each other",
        "psrl.ps_manager_ip",
        "psrl.reward_service_ip",
        "psrl.nixl.server_ip",
    ),
    *not_needed(
        "everything is in the store; logs are in the stack's directory",
        "psrl.logging_path",
        "psrl.agentic_rl.trajectory_output.*",
    ),
    *not_needed("PSRL itself does not read it", "psrl.retry_bound", "psrl.retry_ratio"),
    *not_needed(
        "a group is started whenever all live groups can still meet their deadlines",
        "psrl.max_dispatch_ahead",
    ),
    *not_needed(
        "validation prompts go to the rollout instances, beside training ones",
        "psrl.colocate_validate_and_train",
        "psrl.fuse_rollout_with_validate",
    ),
    not_supported(
        "psrl.fine_grain_overlap.granularity", "training on parts of a batch while the rest is generated", "none"
    ),
    *part(
        OVERLAP,
        "training on parts of a batch while the rest is generated",
        "psrl.fine_grain_overlap.multiplier",
        "psrl.fine_grain_overlap.overlap_scope",
    ),
    same("psrl.group_post_process.enable"),
    same("psrl.group_post_process.name"),
    not_supported("psrl.buffer_post_process.enable", "post-processing of whole batches", False),
    *part(
        Switch("psrl.buffer_post_process.enable", off=(False,)),
        "post-processing of whole batches",
        "psrl.buffer_post_process.name",
    ),
    same("psrl.agentic_rl.refill_failure_threshold"),
    *not_needed(
        "a group that fails is replaced by a fresh prompt, and counted", "psrl.agentic_rl.manager_retry_on_error"
    ),
    same(
        "psrl.agentic_rl.thinking_template",
        convert=names({"multi_traj": "fork"}, "a template that keeps reasoning needs no setting"),
    ),
    same("psrl.agentic_rl.batch_agg_mode"),
    *not_needed("engines always give the log-probs of what they sample", "psrl.log_prob.*"),
    *part(RDMA, "weights over RDMA", "psrl.nixl.*"),
    *not_needed("every engine maps the same files of a version", "psrl.broadcast_init.*"),
    *not_needed("checkpoints have one format, and are complete or not there", "psrl.checkpoint.*"),
    not_supported("psrl.tms.range", "sharing a GPU between trainer and engine"),
    *part(TMS, "sharing a GPU between trainer and engine", "psrl.tms.*"),
    not_supported("psrl.lmcache.enable", "keeping the KV cache outside the GPU", False),
    *part(LMCACHE, "keeping the KV cache outside the GPU", "psrl.lmcache.*"),
    not_supported("psrl.memory_logger.enable", "a log of GPU memory", False),
    *part(Switch("psrl.memory_logger.enable", off=(False,)), "a log of GPU memory", "psrl.memory_logger.*"),
    not_supported("psrl.profile.disable_attn", "running without attention to profile the rest", False),
    not_supported("psrl.profile.fix_weight", "skipping weight loads to profile the rest", False),
    not_supported("psrl.server_rollout.enable", "generation for clients from outside", False),
    *part(
        Switch("psrl.server_rollout.enable", off=(False,)),
        "generation for clients from outside",
        "psrl.server_rollout.*",
    ),
    *not_needed("there is no gateway: groups go to the engines' task queues", "psrl.rollout_gateway.*"),
    same("psrl.status_collection.stats_recorder.enable"),
    same("psrl.status_collection.stats_recorder.interval_in_s"),
    *not_needed("instances report to the coordinator by themselves", "psrl.status_collection.*"),
    not_supported("psrl.env_worker.enable", "environments in processes of their own", False),
    *part(
        Switch("psrl.env_worker.enable", off=(False,)), "environments in processes of their own", "psrl.env_worker.*"
    ),
)
