"""`psrl.rollout_coordination.*`: routing, sync, redundancy."""

from ..convert import none_at
from ..row import Switch, not_needed, not_supported, part, renamed, same

HERE = "psrl.rollout_coordination."
REDUNDANT, ROUTING = f"{HERE}redundant_rollout.", f"{HERE}routing_strategy."
SYNC, MIGRATION = f"{HERE}sync_and_mig_strategy.sync.", f"{HERE}sync_and_mig_strategy.mig."
THUNDER_AGENT = f"{HERE}session_strategy.thunder_agent."
CACHE = f"{ROUTING}cache_aware_policy."

ROWS = (
    same(f"{HERE}partial_rollout.enable"),
    same(f"{HERE}partial_rollout.interrupt_as_prompt"),
    same(f"{REDUNDANT}enable"),
    same(f"{REDUNDANT}redundant_global_batch_size"),
    same(f"{REDUNDANT}redundant_rollout_n"),
    renamed(f"{REDUNDANT}alg_global_batch_size", "psrl.staleness_buffer_entries", weak=True),
    renamed(f"{REDUNDANT}alg_rollout_n", "psrl.rollout_n", weak=True),
    same(f"{ROUTING}method", "`throughput_balance` has no counterpart: PSRL names it and has no such policy either"),
    same(
        f"{ROUTING}max_concurrent_seqs_per_instance",
        "0 has no counterpart",
        none_at(0, why="there is always a cap; the default of 1024 counts"),
    ),
    same(f"{CACHE}cache_threshold"),
    same(f"{CACHE}balance_abs_threshold"),
    same(f"{CACHE}balance_rel_threshold"),
    same(f"{CACHE}balance_token_usage_threshold"),
    same(f"{CACHE}overload_token_usage_threshold"),
    same(f"{CACHE}max_tree_size"),
    same(f"{CACHE}block_size"),
    same(f"{CACHE}kv_capacity_threshold"),
    *not_needed("there is one tier of KV cache: a weight would change nothing", f"{CACHE}gpu_overlap_weight"),
    *not_needed("what is remembered is kept within its size at all times", f"{CACHE}eviction_interval_secs"),
    not_supported(f"{CACHE}lmcache_overlap_weight", "a second tier of KV cache", 0),
    not_supported(f"{ROUTING}kv_transfer.enable", "moving the KV cache between engines", False),
    *part(
        Switch(f"{ROUTING}kv_transfer.enable", off=(False,)),
        "moving the KV cache between engines",
        f"{ROUTING}kv_transfer.*",
    ),
    same(f"{ROUTING}cost_model_path"),
    same(f"{ROUTING}delta_throughput_threshold"),
    same(f"{ROUTING}request_budget"),
    same(f"{ROUTING}request_sort_indicator"),
    same(f"{ROUTING}enable_multi_priority_queue"),
    same(f"{ROUTING}candidate_sort_indicator"),
    same(f"{ROUTING}enable_group_sticky"),
    *not_needed("a turn begins where the one before it was", f"{ROUTING}enable_trajectory_sticky"),
    *not_needed(
        "PSRL itself does not read it",
        f"{ROUTING}logging_interval_in_ms",
        f"{ROUTING}snapshot_staleness_threshold_in_ms",
    ),
    *not_needed(
        "nothing is polled for: routing and syncs follow events",
        f"{ROUTING}check_interval_in_ms",
        f"{HERE}sync_and_mig_strategy.check_interval_in_ms",
    ),
    same(f"{ROUTING}admission_reject_on_waiting"),
    not_supported(
        f"{ROUTING}max_num_waiting_reqs_after_preemption", "routing again what an engine has preempted", 1024
    ),
    same(f"{HERE}sync_and_mig_strategy.method"),
    same(f"{SYNC}indicator"),
    same(f"{SYNC}threshold"),
    same(f"{SYNC}check_req_before_sync"),
    same(f"{SYNC}seamless_train_version"),
    same(f"{MIGRATION}enable"),
    same(f"{MIGRATION}indicator"),
    same(f"{MIGRATION}threshold"),
    same(f"{MIGRATION}stop_indicator"),
    same(f"{MIGRATION}stop_threshold"),
    not_supported(f"{HERE}proactive_filter_strategy.method", "cutting or repeating the last groups of a batch"),
    *part(
        Switch(f"{HERE}proactive_filter_strategy.method"),
        "cutting or repeating the last groups of a batch",
        f"{HERE}proactive_filter_strategy.threshold",
    ),
    same(f"{THUNDER_AGENT}enable"),
    same(f"{THUNDER_AGENT}check_interval_in_ms"),
    same(f"{THUNDER_AGENT}env_token_weight"),
    same(f"{THUNDER_AGENT}buffer_per_session"),
    same(f"{THUNDER_AGENT}continue_scope"),
    same(f"{THUNDER_AGENT}continue_force_pin"),
)
