"""Limits of a program that nobody trusts."""

from pydantic import Field

from .base import Section


class SandboxLimits(Section):
    """Of one program with all that it starts."""

    wall_s: float = Field(default=10, gt=0, le=3600)
    """Time from its start to its end."""
    cpu_s: float = Field(default=10, gt=0, le=3600)
    """CPU time of each of its processes, in whole seconds."""
    memory_mb: int = Field(default=512, ge=16)
    """Each of its processes may allocate so much, and all together may hold it."""
    processes: int = Field(default=32, ge=1)
    """Processes and threads at the same time."""
    disk_mb: int = Field(default=64, ge=1)
    """Size of a file; where programs are confined, of all files together, which are kept in memory."""
    output_bytes: int = Field(default=1 << 20, ge=1)
    """Of its standard output, and of its standard error. A program that says more is ended."""
