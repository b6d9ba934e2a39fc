"""`actor_rollout_ref.rollout.*`: the engine and how it samples."""

from ..convert import names, none_at, only
from ..row import Asked, Converted, Nothing, Switch, not_needed, not_supported, part, renamed

HERE = "actor_rollout_ref.rollout."
AGENTIC = "psrl.agentic_rl."
WHOLE = "samples of a part of the distribution would bias every probability ratio; rollout.temperature narrows without"
TURNS = Switch(f"{HERE}multi_turn.enable", off=(False,))


def greedy_validation(asked: Asked) -> Converted:
    if asked.value:
        raise Nothing("any temperature but 0 samples")
    return Converted((0.0,), "greedy")


def with_tools(asked: Asked) -> Converted:
    if not asked.value:
        raise Nothing("the policy answers once")
    return Converted(("multi_turn", "tools"), "name the functions in psrl.agentic_rl.tools")


ROWS = (
    not_supported(f"{HERE}name", "an engine other than vLLM", "vllm"),
    *not_needed("generation is always asynchronous", f"{HERE}mode"),
    renamed(f"{HERE}n", "psrl.rollout_n"),
    renamed(f"{HERE}temperature", "rollout.temperature"),
    renamed(f"{HERE}top_p", "rollout.top_p", why="only 1", convert=only(1, otherwise=WHOLE)),
    renamed(f"{HERE}top_k", "rollout.top_k", why="only -1 or 0", convert=only(-1, 0, otherwise=WHOLE)),
    not_supported(f"{HERE}do_sample", "training on greedy answers", True),
    renamed(f"{HERE}val_kwargs.temperature", "rollout.val.temperature"),
    renamed(f"{HERE}val_kwargs.top_p", "rollout.val.top_p"),
    renamed(f"{HERE}val_kwargs.top_k", "rollout.val.top_k"),
    renamed(f"{HERE}val_kwargs.n", "rollout.val.n"),
    renamed(
        f"{HERE}val_kwargs.do_sample",
        "rollout.val.temperature",
        why="a temperature of 0 is greedy, any other samples",
        convert=greedy_validation,
        weak=True,
    ),
    renamed(f"{HERE}prompt_length", "data.max_prompt_length", weak=True),
    renamed(f"{HERE}response_length", "data.max_response_length", weak=True),
    renamed(
        f"{HERE}dtype",
        "rollout.dtype",
        why="`bf16` and `fp32` by their long names",
        convert=names({"bf16": "bfloat16", "fp32": "float32", "float": "float32"}),
    ),
    renamed(f"{HERE}enforce_eager", "rollout.enforce_eager"),
    renamed(f"{HERE}max_model_len", "rollout.max_model_len"),
    renamed(
        f"{HERE}max_num_seqs",
        "psrl.rollout_coordination.routing_strategy.max_concurrent_seqs_per_instance",
        convert=none_at(0, why="there is always a cap; the default of 1024 counts"),
    ),
    renamed(f"{HERE}seed", "trainer.seed", weak=True),
    not_supported(
        f"{HERE}gpu_memory_utilization",
        "a share of the GPU's memory; set rollout.kv_cache_gb, the KV cache of one instance in GB",
    ),
    *(
        not_supported(f"{HERE}{kind}_parallel_size", "an engine on several GPUs", 1)
        for kind in ("tensor_model", "pipeline_model", "data", "expert")
    ),
    *not_needed("an engine does not share its GPU with the trainer", f"{HERE}free_cache_engine"),
    *not_needed(
        "engines get every version from the trainer, as files",
        f"{HERE}load_format",
        f"{HERE}layered_summon",
        f"{HERE}update_weights_bucket_megabytes",
        f"{HERE}checkpoint_engine.*",
        f"{HERE}enable_weights_cpu_backup",
        f"{HERE}multi_stage_wake_up",
    ),
    *not_needed(
        "engines always give the log-probs of what they sample, temperature included",
        f"{HERE}calculate_log_probs",
        f"{HERE}logprobs_mode",
    ),
    *not_needed(
        "log-probs are computed in micro-batches of actor.ppo_max_token_len_per_gpu tokens",
        f"{HERE}log_prob_micro_batch_size",
        f"{HERE}log_prob_micro_batch_size_per_gpu",
        f"{HERE}log_prob_use_dynamic_bsz",
        f"{HERE}log_prob_max_token_len_per_gpu",
    ),
    *not_needed(
        "vLLM's own choice is used",
        f"{HERE}enable_chunked_prefill",
        f"{HERE}max_num_batched_tokens",
        f"{HERE}cudagraph_capture_sizes",
        f"{HERE}scheduling_policy",
        f"{HERE}disable_log_stats",
        f"{HERE}skip_tokenizer_init",
        f"{HERE}runner",
        f"{HERE}task",
    ),
    not_supported(f"{HERE}enable_prefix_caching", "an engine without prefix caching", True),
    not_supported(f"{HERE}engine_kwargs.*", "further options of vLLM", False),
    not_supported(f"{HERE}engine_kwargs.vllm", "further options of vLLM"),
    not_supported(f"{HERE}engine_kwargs.sglang", "an engine other than vLLM"),
    not_supported(f"{HERE}engine_kwargs.trtllm", "an engine other than vLLM"),
    not_supported(f"{HERE}ignore_eos", "generating beyond the end of an answer", False),
    not_supported(
        f"{HERE}over_sample_rate", "use psrl.rollout_coordination.redundant_rollout, which counts in groups", 0
    ),
    *part(
        Switch("actor_rollout_ref.model.mtp.enable", off=(False,)),
        "layers that predict several tokens",
        f"{HERE}mtp",
        f"{HERE}mtp.*",
    ),
    *part(
        Switch("actor_rollout_ref.actor.qat.enable", off=(False,)),
        "training for quantisation",
        f"{HERE}qat",
        f"{HERE}qat.*",
    ),
    not_supported(f"{HERE}quantization", "a quantised engine", False),
    not_supported(f"{HERE}quantization_config_file", "a quantised engine"),
    *part(Switch(f"{HERE}quantization", off=(False,)), "a quantised engine", f"{HERE}use_block_quant_rollout"),
    not_supported(f"{HERE}full_determinism", "an engine whose batches do not change its results", False),
    not_supported(f"{HERE}use_fire_sampling", "sampling with a first token of its own", False),
    not_supported(f"{HERE}enable_rollout_routing_replay", "replaying an engine's choice of experts", False),
    not_supported(f"{HERE}disaggregation.enabled", "prefill and decode on different engines", False),
    *part(
        Switch(f"{HERE}disaggregation.enabled", off=(False,)),
        "prefill and decode on different engines",
        f"{HERE}disaggregation.*",
    ),
    not_supported(f"{HERE}skip_rollout", "stored answers in the place of generated ones", False),
    *part(
        Switch(f"{HERE}skip_rollout", off=(False,)),
        "stored answers in the place of generated ones",
        f"{HERE}skip_dump_dir",
    ),
    not_supported(f"{HERE}disable_attn", "running without attention to profile the rest", False),
    *not_needed("how many engines there are says psrl.deployment", f"{HERE}nnodes", f"{HERE}n_gpus_per_node"),
    *not_needed("only Megatron's weights need it", f"{HERE}layer_name_map.*"),
    *not_needed("it only observes a mixture of experts", f"{HERE}moe_load_balance_metrics_interval"),
    *not_needed("the web UI shows each group as a trace", f"{HERE}trace.*"),
    *not_needed("the coordinator routes", f"{HERE}router_config_path"),
    not_supported(f"{HERE}prometheus.enable", "metrics of the engines in Prometheus", False),
    *part(
        Switch(f"{HERE}prometheus.enable", off=(False,)), "metrics of the engines in Prometheus", f"{HERE}prometheus.*"
    ),
    *part(Switch(f"{HERE}task", off=("generate",)), "reward models that pool", f"{HERE}reward_kwargs.*"),
    renamed(f"{HERE}multi_turn.enable", f"{AGENTIC}agent_loop", f"{AGENTIC}environment", convert=with_tools),
    renamed(f"{HERE}multi_turn.max_turns", f"{AGENTIC}max_turns", convert=none_at(None, why="there is always a limit")),
    renamed(f"{HERE}multi_turn.max_assistant_turns", f"{AGENTIC}max_turns", weak=True),
    renamed(f"{HERE}multi_turn.max_parallel_calls", f"{AGENTIC}max_parallel_calls"),
    renamed(f"{HERE}multi_turn.max_tool_response_length", f"{AGENTIC}max_tool_response_length"),
    renamed(f"{HERE}multi_turn.tool_response_truncate_side", f"{AGENTIC}tool_response_truncate_side"),
    renamed(f"{HERE}multi_turn.format", f"{AGENTIC}tool_parser"),
    *not_needed(
        "what was sampled is never tokenised again",
        f"{HERE}multi_turn.tokenization_sanity_check_mode",
        f"{HERE}multi_turn.use_inference_chat_template",
    ),
    *part(TURNS, "tools as veRL's classes; psrl.agentic_rl.tools takes functions", f"{HERE}multi_turn.*"),
)
