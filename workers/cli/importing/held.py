"""References to the environment, kept out of the way while a text around them is read. Called by `reading.py`.

`psrl train` resolves `${oc.env:NAME}`. Until then neither YAML, to which its braces mean something inside a list, nor
OmegaConf, which would resolve it now, may see it.
"""

import re
from typing import Any

REFERENCE = re.compile(r"\$\{(oc\.env:[^{}]*)\}")
OPEN, CLOSE = "\ue000", "\ue001"
"""Characters that no text has: Unicode leaves them to private use."""


def held(value: Any) -> Any:
    """The same text, or list of texts, without a reference that anybody would follow."""
    if isinstance(value, list):
        return [held(one) for one in value]
    found = 1
    while isinstance(value, str) and found:  # a default may be a reference itself
        value, found = REFERENCE.subn(rf"{OPEN}\1{CLOSE}", value)
    return value


def released(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: released(one) for key, one in value.items()}
    if isinstance(value, list):
        return [released(one) for one in value]
    return value.replace(OPEN, "${").replace(CLOSE, "}") if isinstance(value, str) else value
