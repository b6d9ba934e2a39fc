"""The longest context of a model; `tests/compatibility/test_context.py` holds the same cases against vLLM."""

from typing import Any

import pytest

from psrl.activities.data.context import longest_context
from tests.compatibility.contexts import CASES
from tests.support.families import family_config


@pytest.mark.parametrize(("family", "changes", "tokens"), CASES)
def test_a_stretched_context_is_as_long_as_its_configuration_says(
    family: str, changes: dict[str, Any], tokens: int
) -> None:
    found = longest_context(family_config(family, **changes))
    assert found is not None
    assert found.tokens == tokens


def test_a_context_that_yarn_has_not_stretched_yet_says_how() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    found = longest_context(family_config("qwen2", rope_scaling=scaling))
    assert found is not None
    assert "factor 4 over 64 makes 256" in found.hint
    stretched = longest_context(family_config("qwen2", rope_scaling=scaling, max_position_embeddings=256))
    assert stretched is not None
    assert stretched.hint == ""
