"""`generation_config.json` in checkpoints: as it was in the folder that the run began with.

The library reads settings that it refuses to write, a temperature without `do_sample` for one, and many folders have
them: a checkpoint must not fail for what nobody trains with.
"""

from pathlib import Path
from typing import Any

GENERATION = "generation_config.json"


class AsInFolder:
    """In a model's place for such settings, of which `save_pretrained` asks no more than to be written."""

    def __init__(self, content: bytes | None) -> None:
        """None is never written."""
        self._content = content

    def save_pretrained(self, folder: str | Path, **_: Any) -> None:
        if self._content is not None:
            (Path(folder) / GENERATION).write_bytes(self._content)


def keep_generation_settings(model: Any, folder: Path) -> None:
    """Without the file, what the library derives from `config.json` is written, if it can be."""
    if (folder / GENERATION).is_file():
        model.generation_config = AsInFolder((folder / GENERATION).read_bytes())
    elif model.can_generate():
        try:
            model.generation_config.validate(strict=True)
        except ValueError:
            model.generation_config = AsInFolder(None)
