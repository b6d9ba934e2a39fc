"""What is to be run, and with which limits."""

import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path

NOBODY = 65534
"""Whom a program runs as when the worker is root, for whom limits do not count."""


@dataclass(frozen=True)
class Job:
    argv: list[str]
    files: dict[str, str]
    """By their path in the folder; base64."""
    stdin: str
    """Base64."""
    folder: str
    """Where the program starts. When it is confined this place exists for it alone."""
    readable: list[str]
    """Beside the system's own folders, when it is confined."""
    confined: bool
    wall_s: float
    cpu_s: float
    memory_mb: int
    processes: int
    disk_mb: int
    output_bytes: int

    @classmethod
    def read(cls, line: bytes) -> "Job":
        return cls(**json.loads(line))

    def fill(self) -> None:
        """The folder and its files, which are the program's to change."""
        root = Path(self.folder)
        root.mkdir(mode=0o700, exist_ok=True)
        for name, content in self.files.items():
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(base64.b64decode(content))
        if os.geteuid() == 0:
            for place, _, names in os.walk(root):
                for one in (place, *(os.path.join(place, name) for name in names)):
                    os.chown(one, NOBODY, NOBODY)
