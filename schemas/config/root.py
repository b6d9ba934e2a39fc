"""The whole configuration of a run, and the rules that span sections."""

from typing import Self

from pydantic import model_validator

from .actor import ActorSection
from .algorithm import AdvantageEstimator, AlgorithmSection
from .base import Section
from .data import DataSection
from .model import ModelSection
from .psrl import PsrlSection
from .reward import RewardSection
from .rollout import RolloutSection
from .trainer import TrainerSection
from .without_effect import without_effect


class RunConfig(Section):
    """Everything that defines a run. Rules that need files are checked when the run is admitted."""

    psrl: PsrlSection = PsrlSection()
    data: DataSection = DataSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    trainer: TrainerSection = TrainerSection()
    actor: ActorSection = ActorSection()
    rollout: RolloutSection = RolloutSection()
    model: ModelSection = ModelSection()
    reward: RewardSection = RewardSection()

    @property
    def context_tokens(self) -> int:
        """Context the engine needs."""
        return self.rollout.max_model_len or self.data.max_prompt_length + self.data.max_response_length

    @model_validator(mode="after")
    def _required(self) -> Self:
        for key, value in (
            ("model.path", self.model.path),
            ("data.train_files", self.data.train_files),
            ("reward.function", self.reward.function),
        ):
            if not value:
                raise ValueError(f"{key} is required and empty")
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
        need = self.data.max_prompt_length + self.data.max_response_length
        if need > self.actor.ppo_max_token_len_per_gpu:
            raise ValueError(
                f"actor.ppo_max_token_len_per_gpu={self.actor.ppo_max_token_len_per_gpu} is below "
                f"data.max_prompt_length + data.max_response_length = {need}; allowed: that or more, because a "
                "sequence is never cut"
            )
        return self

    @model_validator(mode="after")
    def _every_key_counts(self) -> Self:
        if found := list(without_effect(self)):
            raise ValueError("\n".join(found))
        return self
