"""`actor_rollout_ref.actor.*`: the loss and the optimizer step."""

from ..convert import names, none_at, share_of, twice
from ..row import Asked, Converted, Nothing, Switch, not_needed, not_supported, part, renamed

HERE = "actor_rollout_ref.actor."
LOSS = f"{HERE}policy_loss.loss_mode"


def truncated_weights(asked: Asked) -> Converted:
    if asked.value == -1:
        raise Nothing("it is off")
    return Converted(("token", asked.value))


PACKED = "micro-batches are packed by tokens: actor.ppo_max_token_len_per_gpu"

ROWS = (
    renamed(f"{HERE}ppo_mini_batch_size", "actor.ppo_mini_batch_size", why="in groups here as there"),
    renamed(f"{HERE}ppo_epochs", "actor.ppo_epochs"),
    renamed(f"{HERE}ppo_max_token_len_per_gpu", "actor.ppo_max_token_len_per_gpu"),
    *not_needed(
        PACKED,
        f"{HERE}ppo_micro_batch_size",
        f"{HERE}ppo_micro_batch_size_per_gpu",
        f"{HERE}use_dynamic_bsz",
        f"{HERE}pad_to_length",
        f"{HERE}use_prefix_grouper",
    ),
    not_supported(f"{HERE}shuffle", "shuffling mini-batches between the epochs of a step", False),
    *part(Switch(f"{HERE}shuffle", off=(False,)), "shuffling mini-batches", f"{HERE}data_loader_seed"),
    renamed(
        f"{HERE}clip_ratio", "actor.clip_ratio_low", "actor.clip_ratio_high", why="both sides", convert=twice, weak=True
    ),
    renamed(f"{HERE}clip_ratio_low", "actor.clip_ratio_low"),
    renamed(f"{HERE}clip_ratio_high", "actor.clip_ratio_high"),
    not_supported(f"{HERE}clip_ratio_c", "the second clip, of large ratios with negative advantages"),
    renamed(LOSS, "actor.policy_loss.loss_mode"),
    *part(
        Switch(LOSS, on=("clip_cov", "clip-cov", "kl_cov", "kl-cov")),
        "losses by covariance",
        *(f"{HERE}policy_loss.{key}" for key in ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub")),
        *(f"{HERE}policy_loss.{key}" for key in ("kl_cov_ratio", "ppo_kl_coef")),
    ),
    *part(Switch(LOSS, on=("dro",)), "DRO's loss", f"{HERE}policy_loss.dro_beta"),
    *part(Switch(LOSS, on=("sapo",)), "SAPO's loss", f"{HERE}tau_pos", f"{HERE}tau_neg"),
    renamed(f"{HERE}loss_agg_mode", "actor.loss_agg_mode"),
    renamed(
        f"{HERE}use_token_level_loss",
        "actor.loss_agg_mode",
        why="`true` becomes `token-mean`, `false` `seq-mean-token-mean`",
        convert=names({True: "token-mean", False: "seq-mean-token-mean"}),
        weak=True,
    ),
    not_supported(f"{HERE}loss_scale_factor", "a fixed divisor of the loss"),
    not_supported(f"{HERE}entropy_coeff", "an entropy bonus", 0),
    not_supported(f"{HERE}calculate_sum_pi_squared", "a report of the sum of squared probabilities", False),
    *not_needed("the entropy is always reported", f"{HERE}calculate_entropy"),
    renamed(f"{HERE}use_kl_loss", "actor.use_kl_loss"),
    renamed(f"{HERE}kl_loss_coef", "actor.kl_loss_coef"),
    not_supported(f"{HERE}kl_loss_type", "an estimator other than k3", "low_var_kl", "k3"),
    renamed(
        f"{HERE}tis_imp_ratio_cap",
        "algorithm.rollout_correction.rollout_is",
        "algorithm.rollout_correction.rollout_is_threshold",
        why="`token` with this threshold; -1 is off",
        convert=truncated_weights,
        weak=True,
    ),
    not_supported(f"{HERE}use_rollout_log_probs", "the engine's log-probs in the place of the trainer's", False),
    renamed(f"{HERE}grad_clip", "actor.grad_clip"),
    renamed(f"{HERE}optim.clip_grad", "actor.grad_clip", weak=True),
    renamed(f"{HERE}optim.lr", "actor.optim.lr"),
    renamed(f"{HERE}optim.betas", "actor.optim.betas"),
    renamed(f"{HERE}optim.weight_decay", "actor.optim.weight_decay"),
    renamed(
        f"{HERE}optim.lr_warmup_steps",
        "actor.optim.lr_warmup_steps",
        why="-1 leaves it to the ratio",
        convert=none_at(-1, 0, why="it leaves the warm-up to lr_warmup_steps_ratio"),
    ),
    renamed(
        f"{HERE}optim.lr_warmup_steps_ratio",
        "actor.optim.lr_warmup_steps",
        why="times trainer.total_training_steps",
        convert=share_of("trainer.total_training_steps"),
        weak=True,
    ),
    *not_needed("the run's length is in the section trainer", f"{HERE}optim.total_training_steps"),
    *(
        not_supported(f"{HERE}optim.{key}", "a learning rate that falls after the warm-up", "constant")
        for key in ("warmup_style", "lr_scheduler_type", "lr_decay_style")
    ),
    *not_needed(
        "it counts only with a learning rate that falls",
        *(f"{HERE}optim.{key}" for key in ("min_lr", "min_lr_ratio", "min_lr_factor", "lr_min", "num_cycles")),
        *(f"{HERE}optim.{key}" for key in ("lr_decay_steps", "lr_decay_ratio", "decay_type", "zero_indexed_step")),
        *(f"{HERE}optim.{key}" for key in ("lr_wsd_decay_style", "lr_wsd_decay_steps", "weight_decay_incr_style")),
        *(f"{HERE}optim.{key}" for key in ("use_checkpoint_opt_param_scheduler",)),
    ),
    *(
        not_supported(f"{HERE}optim.{key}", "a warm-up that begins above 0", 0)
        for key in ("lr_warmup_init", "lr_start")
    ),
    *(
        not_supported(f"{HERE}optim.{key}", "an optimizer other than AdamW", "adam", "adamw", "Adam", "AdamW")
        for key in ("optimizer", "name")
    ),
    not_supported(f"{HERE}optim.optimizer_impl", "an optimizer other than PyTorch's AdamW", "torch.optim"),
    not_supported(f"{HERE}optim.override_optimizer_config", "further options of the optimizer"),
    not_supported(f"{HERE}optim.eps", "another epsilon of AdamW", 1e-8),
    *part(Switch(f"{HERE}optim.optimizer", on=("muon",)), "Muon", f"{HERE}optim.muon_*"),
    *not_needed(
        "the optimizer's state is float32, in one process",
        *(f"{HERE}optim.{key}" for key in ("exp_avg_dtype", "exp_avg_sq_dtype", "main_grads_dtype")),
        *(f"{HERE}optim.{key}" for key in ("use_layer_wise_distributed_optimizer", "use_precision_aware_optimizer")),
    ),
    *not_needed("psrl.rollout_n says it", f"{HERE}rollout_n"),
    *not_needed("the weights of a checkpoint are always loaded", f"{HERE}load_weight"),
    *not_needed(
        "a checkpoint has all that is needed to continue, and plain transformers loads it", f"{HERE}checkpoint.*"
    ),
    *not_needed(
        "a matter of speed and memory, not of the result", f"{HERE}use_torch_compile", f"{HERE}use_fused_kernels"
    ),
    *not_needed(
        "a matter of speed and memory, not of the result",
        *(f"{HERE}entropy_{key}" for key in ("checkpointing", "from_logits_chunk_size", "from_logits_with_chunking")),
        f"{HERE}use_remove_padding",
    ),
    not_supported(f"{HERE}qat.enable", "training for quantisation", False),
    *part(Switch(f"{HERE}qat.enable", off=(False,)), "training for quantisation", f"{HERE}qat.*"),
    not_supported(f"{HERE}router_replay.mode", "replaying the choice of experts", "disabled"),
    *part(
        Switch(f"{HERE}router_replay.mode", off=("disabled",)),
        "replaying the choice of experts",
        f"{HERE}router_replay.*",
    ),
    *not_needed("there are no vision models yet", f"{HERE}freeze_vision_tower"),
)
"""The trainer's library is in `engines.py`."""
