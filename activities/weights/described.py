"""The model that a folder describes, without its weights; and in words, why there is none.

Used at admission, where a folder's own code runs for the first time, and by who needs a model's class, names or shapes.
"""

import re
import traceback
from pathlib import Path
from typing import Any

from ...schemas.config import ModelSection
from ...schemas.errors import ModelError, one_line
from ..library import loading
from .folder import read_object

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
"""Says which of the folder's files hold the model."""
NO_CAUSAL_LM = "Unrecognized configuration class"
MOST = 300
"""Of a library's message: it may list every model it knows."""


def described_model(section: ModelSection) -> Any:
    """A causal LM whose tensors have shapes only. Raises `ModelError`."""
    with loading:
        return _described(section)


def _described(section: ModelSection) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    trust = section.trust_remote_code
    try:
        config = AutoConfig.from_pretrained(section.path, local_files_only=True, trust_remote_code=trust)
        _ask_for_logits_only(config)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=trust)
    except (Exception, SystemExit) as error:  # the border to a folder's own code, which may raise anything
        raise ModelError(f"model.path={section.path!r}: {_why(error, section)}") from error


def _ask_for_logits_only(config: Any) -> None:
    """Folders keep what somebody once wanted a forward pass to return; who reads logits must find them."""
    for part in (config, config.get_text_config()):
        part.return_dict, part.output_attentions, part.output_hidden_states = True, False, False


def _why(error: BaseException, section: ModelSection) -> str:
    if not section.trust_remote_code and "trust_remote_code" in str(error):
        return "the model needs code from its own folder; allowed: model.trust_remote_code=true, if you trust that code"
    if section.trust_remote_code and (failed := own_code_failed(error)):
        return failed
    values = read_object(Path(section.path) / CONFIG)
    if str(error).startswith(NO_CAUSAL_LM):
        return f"model_type {values.get('model_type')!r} is no causal language model of text alone"
    said = one_line(error)[:MOST]
    if isinstance(error, KeyError):  # says no more than the key
        said = f"{said} is unknown"
    return f"cannot be read as a causal LM: {said}{_culprits(values, said)}"


def _culprits(values: dict[str, Any], said: str) -> str:
    """The keys whose text a message quotes: the library names what it does not know, seldom where it stands."""
    found = [
        f"{key}={value!r}"
        for key, value in values.items()
        if isinstance(value, str) and key != "model_type" and re.search(rf"(?<![\w.]){re.escape(value)}(?!\w)", said)
    ]
    return f" ({CONFIG}: {', '.join(found)})" if found else ""


def own_code_failed(error: BaseException) -> str:
    """How code of the folder's own failed that was allowed to run; empty for a failure of another kind."""
    place, said = _own_place(error), one_line(error)[:MOST]
    if not place and not isinstance(error, ImportError):
        return ""
    return f"the model's own code failed{place}: {type(error).__name__}: {said}{_remedy(error)}"


def _own_place(error: BaseException) -> str:
    """The last line of the folder's own code that was reached; the library runs a copy of it."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "transformers_modules" in one.filename]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _remedy(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"; install {error.name.partition('.')[0]}"
    # The library reads the imports before it runs the code, and names all that are missing.
    listed = re.search(r"not found in your environment: ([^.]*)", one_line(error))
    return f"; install {listed[1]}" if isinstance(error, ImportError) and listed else ""
