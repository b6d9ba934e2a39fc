"""Configuration of a run: frozen pydantic sections with the meaning under each field."""

from .actor import ActorSection, LossAggregation, LossMode, Optim, Precision
from .agentic import BatchAggMode
from .algorithm import AdvantageEstimator, AlgorithmSection, FilterGroups, RolloutCorrection, RolloutCorrectionLevel
from .base import Section
from .data import DataSection
from .load import load_config, merge, merge_with_places, parse_config
from .model import ModelSection
from .psrl import ContinueScope, GroupFilterName, PsMode, PsrlSection, RoutingMethod
from .reward import RewardIsolation, RewardPart, RewardScope, RewardSection, WeightedReward
from .rollout import RolloutDtype, RolloutSection, ValSampling
from .root import RunConfig
from .trainer import ModelEngine, TrainerSection

__all__ = [
    "ActorSection",
    "AdvantageEstimator",
    "AlgorithmSection",
    "BatchAggMode",
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
    "RewardIsolation",
    "RewardPart",
    "RewardScope",
    "RewardSection",
    "RolloutCorrection",
    "RolloutCorrectionLevel",
    "RolloutDtype",
    "RolloutSection",
    "RoutingMethod",
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
