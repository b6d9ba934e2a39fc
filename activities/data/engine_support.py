"""Whether the engine can run a kind of model, asked at admission where that is in doubt.

vLLM runs most models of the library that it has no code for itself by the library's own. The others, older families as
a rule, it must know by name, and only it knows its names. Its code for families that also take images or sound needs
packages that need not be there, even for the part that reads text. Importing it takes seconds and half a gigabyte, so
is asked in a process that ends with the answer.
"""

import re
import subprocess
import sys
from functools import lru_cache
from typing import Any, Final, NamedTuple

from ...schemas.errors import ModelError
from ..library import loading

UNKNOWN, BROKEN = 3, 4
"""Exit statuses that no other end of a process has: the engine has no code for it, or code that cannot be loaded, whose
reason is the last line."""
QUESTION: Final = f"""
import sys
from vllm import ModelRegistry
known = ModelRegistry.models.get(sys.argv[1])
if known is None:
    sys.exit({UNKNOWN})
try:
    known.load_model_cls()
except Exception as error:
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    print(" ".join(f"{{type(error).__name__}}: {{error}}".split()))
    sys.exit({BROKEN})
"""
PATIENCE_S = 300.0
MOST = 300
"""Of the reason."""


class Answer(NamedTuple):
    status: int
    why: str = ""


def require_engine_support(path: str, model: Any) -> None:
    """`model` is `described_model`'s. Raises `ModelError` for one that the engine cannot run; where its class is the
    folder's own, the engine itself will say so."""
    kind = type(model)
    if not kind.__module__.startswith("transformers.models."):
        return
    by_the_library = kind.is_backend_compatible() or kind._can_set_attn_implementation()
    if by_the_library and not _of_more_than_text(kind):
        return
    answer = _asked(kind.__name__)
    named = f"{kind.__name__} (model_type {model.config.model_type})"
    if answer.status == UNKNOWN and not by_the_library:
        raise ModelError(
            f"model.path={path}: vLLM has no code for {named}, and cannot run it by that of transformers; allowed: a "
            "model that vLLM serves"
        )
    if answer.status == BROKEN:
        missing = re.search(r"No module named '(\w+)", answer.why)
        remedy = f"install {missing[1]} where the engines run" if missing else "allowed: a model that vLLM serves here"
        raise ModelError(f"model.path={path}: vLLM cannot load its code for {named}: {answer.why[:MOST]}; {remedy}")


def _of_more_than_text(kind: type) -> bool:
    """Whether the library has, beside this class, one of the same family that takes images, video or sound."""
    with loading:
        from transformers.models.auto.configuration_auto import model_type_to_module_name
        from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES

    family = kind.__module__.split(".")[2]
    return family in map(model_type_to_module_name, MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)


@lru_cache(maxsize=16)
def _asked(architecture: str) -> Answer:
    """Without an answer, because vLLM is not on this machine or does not import, the engine itself will say so."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", QUESTION, architecture],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer(0)
    return Answer(done.returncode, (done.stdout.splitlines() or [""])[-1])
