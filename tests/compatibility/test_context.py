"""vLLM would refuse a longer context than it derives itself: admission has to know it beforehand."""

from typing import Any

import pytest
from vllm.config.model import _get_and_verify_max_len
from vllm.transformers_utils.config import patch_rope_parameters
from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase

from psrl.activities.data.context import longest_context
from tests.compatibility.contexts import CASES
from tests.support.families import family_config


def derived_by_vllm(config: Any) -> int:
    patch_rope_parameters(config)
    return int(
        _get_and_verify_max_len(
            hf_config=config,
            model_arch_config=ModelArchConfigConvertorBase(config, config).convert(),
            tokenizer_config=None,
            max_model_len=None,
            disable_sliding_window=False,
            sliding_window=None,
        )
    )


@pytest.mark.parametrize(("family", "changes", "tokens"), CASES)
def test_admission_and_engine_agree_on_the_context(family: str, changes: dict[str, Any], tokens: int) -> None:
    assert derived_by_vllm(family_config(family, **changes)) == tokens
    found = longest_context(family_config(family, **changes))
    assert found is not None
    assert found.tokens == tokens
