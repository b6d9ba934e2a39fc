"""`algorithm.*`: advantages, filters, the correction between engine and trainer."""

from ..convert import names
from ..row import Asked, Converted, Nothing, Switch, not_needed, not_supported, part, renamed, same

CORRECTION = "algorithm.rollout_correction."
GAE = Switch("algorithm.adv_estimator", on=("gae",))


def the_filter(asked: Asked) -> Converted:
    if not asked.value:
        raise Nothing("it is off")
    return Converted((True, "dynamic_sampling_filter"))


def older_correction(asked: Asked) -> Converted:
    """Before `rollout_correction`, `rollout_is` was a switch and the level a key of its own."""
    if not asked.value:
        raise Nothing("it is off")
    return Converted((asked.others.get("algorithm.rollout_is_level", "token"),))


ROWS = (
    same("algorithm.adv_estimator"),
    same("algorithm.norm_adv_by_std_in_grpo"),
    *part(GAE, "a critic", "algorithm.gamma", "algorithm.lam"),
    not_supported(
        "algorithm.use_kl_in_reward", "a KL penalty in the reward; actor.use_kl_loss is one in the loss", False
    ),
    *part(
        Switch("algorithm.use_kl_in_reward", off=(False,)),
        "a KL penalty in the reward",
        "algorithm.kl_penalty",
        "algorithm.kl_ctrl.*",
    ),
    not_supported("algorithm.use_pf_ppo", "weighting samples by preference", False),
    *part(Switch("algorithm.use_pf_ppo", off=(False,)), "weighting samples by preference", "algorithm.pf_ppo.*"),
    renamed(
        "algorithm.filter_groups.enable",
        "psrl.group_post_process.enable",
        "psrl.group_post_process.name",
        why="`true` chooses `dynamic_sampling_filter`",
        convert=the_filter,
        weak=True,
    ),
    same(
        "algorithm.filter_groups.metric",
        "`reward`, `reward_score` and `seq_reward` are `score`; any other is a number that the reward function returns",
        names({"reward": "score", "reward_score": "score"}),
    ),
    *not_needed(
        "psrl.group_post_process.max_consecutive_drops stops a run that filters everything",
        "algorithm.filter_groups.max_num_gen_batches",
        "algorithm.filter_groups.max_inflight_gen_batches",
    ),
    same(f"{CORRECTION}rollout_is"),
    same(f"{CORRECTION}rollout_is_threshold"),
    not_supported(f"{CORRECTION}rollout_is_batch_normalize", "importance weights with mean 1", False),
    *(
        not_supported(f"{CORRECTION}{key}", "leaving out what engine and trainer disagree on")
        for key in ("rollout_rs", "rollout_rs_threshold", "rollout_rs_threshold_lower", "rollout_token_veto_threshold")
    ),
    *(
        not_supported(f"{CORRECTION}{key}", "the engine's log-probs in the place of the trainer's", False)
        for key in ("bypass_mode", "bypass_old_logprob_for_rollout")
    ),
    not_supported(f"{CORRECTION}loss_type", "a correction without clipping", "ppo_clip"),
    not_supported(f"{CORRECTION}use_pure_rollout_correction", "a correction without clipping", False),
    renamed(
        "algorithm.rollout_is", f"{CORRECTION}rollout_is", why="`true` becomes its level", convert=older_correction
    ),
    renamed("algorithm.rollout_is_threshold", f"{CORRECTION}rollout_is_threshold", weak=True),
    *not_needed("it is part of algorithm.rollout_is", "algorithm.rollout_is_level"),
    not_supported("algorithm.rollout_is_mode", "leaving out what engine and trainer disagree on", "truncate"),
)
