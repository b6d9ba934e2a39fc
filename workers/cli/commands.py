"""Every command, in the order in which `psrl --help` lists them."""

from . import run_commands, stack_commands, look_commands, session_commands, calibrate_command, simulate_command  # noqa: F401, I001 - importing registers, in this order
from .app import app

__all__ = ["app"]
