"""Whether the engine knows a kind of model, asked at admission where that is in doubt.

vLLM runs most models of the library that it has no code for itself by the library's own. The others, older families as
a rule, it must know by name, and only it knows its names. Importing it takes seconds and half a gigabyte, so it is
asked in a process that ends with the answer.
"""

import subprocess
import sys
from functools import lru_cache
from typing import Any, Final

from ...schemas.errors import ModelError

UNKNOWN: Final = 3
"""Exit status that no other end of a process has."""
QUESTION = f"""
import sys
from vllm import ModelRegistry
sys.exit(0 if sys.argv[1] in ModelRegistry.get_supported_archs() else {UNKNOWN})
"""
PATIENCE_S = 300.0


def require_engine_support(path: str, model: Any) -> None:
    """`model` is `described_model`'s. Raises `ModelError` for one that the engine cannot run; where its class is the
    folder's own, the engine itself will say so."""
    kind = type(model)
    if not kind.__module__.startswith("transformers.models."):
        return
    if kind.is_backend_compatible() or kind._can_set_attn_implementation():
        return
    if not _may_know(kind.__name__):
        raise ModelError(
            f"model.path={path}: vLLM has no code for {kind.__name__} (model_type {model.config.model_type}), and "
            "cannot run it by that of transformers; allowed: a model that vLLM serves"
        )


@lru_cache(maxsize=16)
def _may_know(architecture: str) -> bool:
    """Without an answer, because vLLM is not on this machine or does not import, the engine itself will say so."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", QUESTION, architecture], capture_output=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != UNKNOWN
