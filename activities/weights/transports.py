"""The transports there are, by the value of `psrl.ps_mode`. Nothing else makes one."""

from collections.abc import Callable, Mapping
from pathlib import Path

from ...schemas.config import PsMode
from .file import FileTransport
from .transport import WeightTransport

TRANSPORTS: Mapping[PsMode, Callable[[Path], WeightTransport]] = {PsMode.FILE: FileTransport}
"""From the stack's folder of versions to a transport."""


def open_transport(mode: PsMode, weights_dir: Path) -> WeightTransport:
    return TRANSPORTS[mode](weights_dir)


def every_transport(weights_dir: Path) -> tuple[WeightTransport, ...]:
    """For readers: a version is read through the transport that its manifest names."""
    return tuple(make(weights_dir) for make in TRANSPORTS.values())
