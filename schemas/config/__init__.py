"""Configuration of a run: frozen pydantic sections with the meaning under each field."""

from .actor import ActorSection, LossAggregation, LossMode, Optim, Precision
from .agentic import BatchAggMode
from .algorithm import AdvantageEstimator, AlgorithmSection, FilterGroups, RolloutCorrection, RolloutCorrectionLevel
from .base import Section
from .data import DataSection
from .load import load_config, merge, merge_with_places, parse_config
from .model import ModelSection
from .psrl import ContinueScope, GroupFilterName, PsMode, PsrlSection
from .reward import RewardIsolation, RewardPart, RewardScope, RewardSection, WeightedReward
from .rollout import RolloutDtype, RolloutSection, ValSampling
from .root import RunConfig
from .routing import CandidateOrder, RequestOrder, RoutingMethod, RoutingStrategy
from .trainer import ModelEngine, TrainerSection

__all__ = [
    "ActorSection",
    "AdvantageEstimator",
    "AlgorithmSection",
    "BatchAggMode",
    "CandidateOrder",
    "ContinueScope",
    "DataSection",
    "FilterGroups",
    "GroupFilterName",
    "LossAggregation",
    "LossMode",
    "ModelEngine",
    "ModelSection",
    "Optim",
    "Precision",
    "PsMode",
    "PsrlSection",
    "RequestOrder",
    "RewardIsolation",
    "RewardPart",
    "RewardScope",
    "RewardSection",
    "RolloutCorrection",
    "RolloutCorrectionLevel",
    "RolloutDtype",
    "RolloutSection",
    "RoutingMethod",
    "RoutingStrategy",
    "RunConfig",
    "Section",
    "TrainerSection",
    "ValSampling",
    "WeightedReward",
    "load_config",
    "merge",
    "merge_with_places",
    "parse_config",
]
