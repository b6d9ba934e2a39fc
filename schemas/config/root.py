"""The whole configuration of a run, and the rules that span sections."""

from math import ceil
from typing import Self

from pydantic import model_validator

from .actor import ActorSection
from .agentic import AgentLoop
from .algorithm import REWARD_ITSELF, AdvantageEstimator, AlgorithmSection
from .base import Section
from .built_in_rewards import BuiltInReward
from .data import DataSection
from .model import ModelSection
from .psrl import GroupFilterName, PsrlSection
from .reward import RewardSection
from .rollout import RolloutSection
from .trainer import ModelEngine, TrainerSection
from .without_effect import without_effect

SCORING_MARGIN_S = 30
"""For what a scoring task does besides: reading, storing, the pauses between attempts."""


class RunConfig(Section):
    """Everything that defines a run. Rules that need files are checked when the run is admitted."""

    theirs = frozenset(
        {"actor_rollout_ref", "train_actor_rollout_ref", "gen_actor_rollout_ref", "custom_reward_function"}
    )

    psrl: PsrlSection = PsrlSection()
    data: DataSection = DataSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    trainer: TrainerSection = TrainerSection()
    actor: ActorSection = ActorSection()
    rollout: RolloutSection = RolloutSection()
    model: ModelSection = ModelSection()
    reward: RewardSection = RewardSection()
    model_engine: ModelEngine = ModelEngine.DP
    """The library that trains."""

    @property
    def context_tokens(self) -> int:
        """Context the engine needs."""
        return self.rollout.max_model_len or self.data.max_prompt_length + self.data.max_response_length

    @property
    def scoring_timeout_s(self) -> float:
        """Time limit of one scoring task. Each attempt of a reward may take all its time, for as many trajectories
        at a time as there is room, and so may each of a group filter of the user's, which runs in the same task.
        Several rewards run at the same time."""
        chosen = self.psrl.group_post_process
        together = max(self.psrl.offered_trajectories, self.rollout.val.n)
        limits = [part.limits for part in self.reward.parts]
        scoring_s = max((ceil(together / one.room) * one.call_s * one.max_attempts for one in limits), default=0)
        filters = chosen.enable and chosen.is_plug_in
        return scoring_s + filters * self.reward.call_s * self.reward.max_attempts + SCORING_MARGIN_S

    @model_validator(mode="after")
    def _required(self) -> Self:
        says_itself = self.psrl.agentic_rl.agent_loop is not AgentLoop.GENERATE_ONLY
        for key, value in (
            ("model.path", self.model.path),
            ("data.train_files", self.data.train_files),
            ("reward.function", self.reward.parts or says_itself),
        ):
            if not value:
                raise ValueError(f"{key} is required and empty")
        return self

    @model_validator(mode="after")
    def _somebody_says_the_outcome(self) -> Self:
        if self.psrl.agentic_rl.agent_loop is AgentLoop.GENERATE_ONLY:
            for part in self.reward.parts:
                if part.limits.function == BuiltInReward.OUTCOME:
                    raise ValueError(
                        f"{part.key}.function=outcome, which an environment or an agent says, but "
                        "psrl.agentic_rl.agent_loop=generate_only has none; allowed: multi_turn, session"
                    )
        return self

    @model_validator(mode="after")
    def _batch_divides(self) -> Self:
        mini, batch = self.actor.ppo_mini_batch_size, self.psrl.staleness_buffer_entries
        if mini is not None and batch % mini:
            raise ValueError(
                f"actor.ppo_mini_batch_size={mini} does not divide psrl.staleness_buffer_entries={batch}; "
                f"allowed: {', '.join(str(d) for d in range(1, batch + 1) if batch % d == 0)}"
            )
        return self

    @model_validator(mode="after")
    def _turns_have_an_environment(self) -> Self:
        agentic = self.psrl.agentic_rl
        if agentic.agent_loop is AgentLoop.MULTI_TURN and not agentic.environment:
            raise ValueError(
                "psrl.agentic_rl.environment='' with psrl.agentic_rl.agent_loop=multi_turn; allowed: the import path "
                "of an environment, package.module:Class"
            )
        return self

    @model_validator(mode="after")
    def _group_large_enough(self) -> Self:
        if self.psrl.rollout_n > 1:
            return self
        if self.algorithm.adv_estimator is AdvantageEstimator.RLOO:
            raise ValueError(
                "psrl.rollout_n=1 with algorithm.adv_estimator=rloo leaves a trajectory nothing to be compared with; "
                "allowed: psrl.rollout_n >= 2"
            )
        if self.algorithm.norm_adv_by_std_in_grpo:
            raise ValueError(
                "psrl.rollout_n=1 with group-normalised advantages gives every trajectory advantage 0; "
                "allowed: psrl.rollout_n >= 2, or algorithm.norm_adv_by_std_in_grpo=false (the reward itself is "
                "then the advantage)"
            )
        return self

    @model_validator(mode="after")
    def _some_group_passes_the_filter(self) -> Self:
        chosen = self.psrl.group_post_process
        if chosen.enable and chosen.name == GroupFilterName.DYNAMIC_SAMPLING and self.psrl.rollout_n == 1:
            raise ValueError(
                f"psrl.group_post_process.name={chosen.name} with psrl.rollout_n=1 would drop every group, for want of "
                "another trajectory that differs; allowed: psrl.rollout_n >= 2, or psrl.group_post_process.enable=false"
            )
        return self

    @model_validator(mode="after")
    def _the_metric_is_of_a_reward(self) -> Self:
        metric = self.algorithm.filter_groups.metric
        names = list(self.reward.functions)
        if names and metric not in REWARD_ITSELF and metric.partition("/")[0] not in names:
            raise ValueError(
                f"algorithm.filter_groups.metric={metric!r} with reward.functions; allowed: "
                f"{', '.join((*REWARD_ITSELF, *names))}, or a number of one of these, such as {names[0]}/acc"
            )
        return self

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        need = self.data.max_prompt_length + self.data.max_response_length
        limit = self.rollout.max_model_len
        if limit is not None and need > limit:
            raise ValueError(
                f"data.max_prompt_length + data.max_response_length = {need} is longer than "
                f"rollout.max_model_len={limit}; allowed: at most {limit}"
            )
        return self

    @model_validator(mode="after")
    def _sequence_fits_a_micro_batch(self) -> Self:
        need, what = self.data.max_prompt_length + self.data.max_response_length, ""
        if self.psrl.agentic_rl.agent_loop is AgentLoop.SESSION and self.rollout.max_model_len:
            need, what = self.rollout.max_model_len, "rollout.max_model_len, which an agent's conversation may fill"
        if need > self.actor.ppo_max_token_len_per_gpu:
            raise ValueError(
                f"actor.ppo_max_token_len_per_gpu={self.actor.ppo_max_token_len_per_gpu} is below "
                f"{what or 'data.max_prompt_length + data.max_response_length'} = {need}; allowed: that or more, "
                "because a sequence is never cut"
            )
        return self

    @model_validator(mode="after")
    def _every_key_counts(self) -> Self:
        if found := list(without_effect(self)):
            raise ValueError("\n".join(found))
        return self
