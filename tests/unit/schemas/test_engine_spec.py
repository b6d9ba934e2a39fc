"""What an engine is told of a run's configuration."""

import pytest
from pydantic import ValidationError

from psrl.schemas.config import RolloutSection, parse_config
from psrl.schemas.ids import RunId
from psrl.schemas.messages.rollout import EngineSpec
from tests.support.scripted_parts import minimal_config

CONFIG = parse_config(
    minimal_config()
    | {"rollout": {"kv_cache_gb": 0.5, "block_size": 64}, "trainer": {"seed": 7}}
    | {"data": {"train_files": ["t"], "max_prompt_length": 10, "max_response_length": 20}}
)


def test_it_carries_the_rollout_section_whole() -> None:
    spec = EngineSpec.of(RunId("run"), CONFIG)
    assert spec.rollout == CONFIG.rollout
    assert spec.model == CONFIG.model
    assert (spec.kv_cache_bytes, spec.context_tokens, spec.seed) == (500_000_000, 30, 7)


def test_every_option_of_the_engine_arrives_as_it_was_sent() -> None:
    spec = EngineSpec.of(RunId("run"), CONFIG)
    again = EngineSpec.model_validate_json(spec.model_dump_json())
    assert again == spec
    assert set(RolloutSection.model_fields) == set(again.rollout.model_dump())


def test_a_host_refuses_an_option_that_it_does_not_know() -> None:
    """It would serve with an engine that the user did not ask for."""
    values = EngineSpec.of(RunId("run"), CONFIG).model_dump(mode="json")
    values["rollout"]["of_a_later_release"] = True
    with pytest.raises(ValidationError, match="of_a_later_release"):
        EngineSpec.model_validate(values)
