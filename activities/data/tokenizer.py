"""The model's tokenizer: the `AutoTokenizer` of the model directory, the same for prompts, engine and trainer."""

import string
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from ...schemas.errors import ModelError, one_line
from ..library import loading
from ..weights.described import own_code_failed
from ..weights.folder import refuse_pointer

ADDITIONAL_TEMPLATES = "additional_chat_templates"
"""Folder of the templates beside the default one."""
TOKENIZER_FILES = (
    *("tokenizer*", "*.jinja", "chat_template*", f"{ADDITIONAL_TEMPLATES}/*.jinja"),
    *("vocab*", "merges*", "special_tokens_map.json"),
)
"""Names of the files that decide how text becomes ids."""
TEMPLATE_FILES = ("*.jinja", "chat_template*")
"""Those of them that lay out a chat and hold no vocabulary: the library makes an empty tokenizer from them alone."""


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that we use."""

    chat_template: Any

    def __call__(self, text: list[str], add_special_tokens: bool, verbose: bool) -> Any:
        """`verbose=False`: we have limits of our own, and texts longer than the model's are no reason for a warning."""

    def __len__(self) -> int: ...

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        tools: list[Any] | None,
        chat_template: str | None,
        tokenize: bool,
        add_generation_prompt: bool,
    ) -> Any: ...

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str: ...


def load_tokenizer(model_path: str, trust_remote_code: bool) -> Tokenizer:
    """Raises `ModelError` when the directory holds none that loads. Never asks the network. Kept in memory until its
    files change."""
    stats = tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in tokenizer_files(model_path))
    with loading:
        return _load(model_path, trust_remote_code, stats)


@lru_cache(maxsize=4)
def _load(model_path: str, trust_remote_code: bool, stats: tuple[tuple[str, int, int], ...]) -> Tokenizer:
    # Takes seconds to import; only processes that tokenise pay for it.
    from transformers import AutoTokenizer

    for file in tokenizer_files(model_path):
        refuse_pointer(file)
    if all(any(fnmatch(name, pattern) for pattern in TEMPLATE_FILES) for name, _, _ in stats):
        raise ModelError(f"model.path={model_path} has no tokenizer; expected tokenizer.json or tokenizer_config.json")
    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(
            model_path, trust_remote_code=trust_remote_code, local_files_only=True
        )
        tried = tokenizer([string.printable], add_special_tokens=False, verbose=False)["input_ids"][0]
    except (Exception, SystemExit) as error:  # the library raises anything on damaged files, and so does own code
        why = own_code_failed(error) if trust_remote_code else ""
        said = why or f"{type(error).__name__}: {one_line(error)}"
        raise ModelError(f"the tokenizer in model.path={model_path} does not load: {said}") from error
    if not tried:
        found = ", ".join(name for name, _, _ in stats)
        raise ModelError(
            f"the tokenizer in model.path={model_path} makes no token of any text: it has no vocabulary; expected "
            f"tokenizer.json or the vocabulary's own files, found {found}"
        )
    return tokenizer


def tokenizer_files(model_path: str) -> list[Path]:
    """The tokenizer's files, sorted by name."""
    return sorted({file for pattern in TOKENIZER_FILES for file in Path(model_path).glob(pattern) if file.is_file()})


def appended_ids(tokenizer: Tokenizer) -> list[int]:
    """What the tokenizer writes after plain text: an end of sequence, as models for other purposes want it. A prompt
    that ends its own turn leaves nothing to be said."""
    with_specials, bare = (
        list(tokenizer(["a"], add_special_tokens=special, verbose=False)["input_ids"][0]) for special in (True, False)
    )
    for start in range(len(with_specials) - len(bare) + 1):
        if with_specials[start : start + len(bare)] == bare:
            return with_specials[start + len(bare) :]
    return []
