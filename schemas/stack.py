"""Where the parts of a stack are found: written by `psrl up`, read by every process and the CLI."""

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import UserError
from .ids import InstanceId

STACK_FILE = "stack.json"
HOME_VARIABLE = "PSRL_HOME"


class Stack(BaseModel):
    """Addresses and folders of one stack."""

    model_config = ConfigDict(frozen=True)

    home: Path
    """The one directory everything is kept under."""
    temporal_address: str
    namespace: str = "default"
    temporal_ui: str = ""
    """Address of the web UI; empty when unknown."""
    postgres_url: str
    """SQLAlchemy URL, `postgresql+psycopg://…`."""
    coordinator_address: str
    weights_dir: Path
    """Where the `file` transport keeps versions."""
    checkpoints_dir: Path
    instances: tuple[InstanceId, ...]


def stack_home() -> Path:
    """`$PSRL_HOME`, else `.psrl` in the working directory; it need not exist. Raises `UserError` when it cannot be a
    directory."""
    try:
        home = Path(os.environ.get(HOME_VARIABLE) or ".psrl").absolute()
    except FileNotFoundError as error:
        raise UserError(f"the working directory has been removed: go to another, or set {HOME_VARIABLE}") from error
    there = next(place for place in (home, *home.parents) if place.exists())
    if not there.is_dir():
        raise UserError(f"{HOME_VARIABLE}={home}: {there} is a file; allowed: a directory, or a path for a new one")
    return home


def load_stack(home: Path | None = None) -> Stack:
    """Raises `UserError` when no stack was started there."""
    file = (home or stack_home()) / STACK_FILE
    try:
        return Stack.model_validate_json(file.read_bytes())
    except FileNotFoundError as error:
        raise UserError(f"no stack under {file.parent}: start one with `psrl up`, or set {HOME_VARIABLE}") from error
    except ValidationError as error:
        raise UserError(
            f"{file} is damaged ({error.error_count()} faults); `psrl down` and `psrl up` make it anew"
        ) from error
