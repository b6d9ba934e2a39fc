"""Where the parts of a stack are found, and who they must be: in a file that `psrl up` writes, or in the environment.
Read by every process and the CLI."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from . import environment as env
from .environment import HOME_VARIABLE
from .errors import UserError
from .ids import InstanceId, instance_id

__all__ = ["ADDRESSES", "HOME_VARIABLE", "STACK_FILE", "Stack", "described_by_environment", "load_stack", "stack_home"]

STACK_FILE = "stack.json"
ADDRESSES = (env.TEMPORAL_ADDRESS, env.POSTGRES_URL, env.COORDINATOR_ADDRESS)
REQUIRED = (*ADDRESSES, env.INSTANCES)
FORMS = {
    env.TEMPORAL_ADDRESS: (r"\S+:\d+", "HOST:PORT"),
    env.POSTGRES_URL: (r"postgres(ql)?(\+psycopg)?://\S+", "postgresql://USER:PASSWORD@HOST:PORT/DB"),
    env.COORDINATOR_ADDRESS: (r"\S+:\d+", "HOST:PORT"),
    env.INSTANCES: (r"\d{1,4}", "a number, 0 or more"),
    env.GATEWAY_ADDRESS: (r"(\S+:\d+)?", "HOST:PORT"),
}


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
    gateway_address: str = ""
    """Where agents find their sessions; empty: there is no gateway."""
    weights_dir: Path
    """Where the `file` transport keeps versions."""
    checkpoints_dir: Path
    instances: tuple[InstanceId, ...]
    stack_id: str = ""
    """Whose processes these are: the coordinator answers no other stack's."""
    temporal_id: str = ""
    """The id that Temporal gave our namespace when it was made: another server's namespace of that name has another."""
    store_id: str = ""
    """The id that the first migration of the database wrote into it.

    An empty id is not known, and whoever answers is trusted (L14 is then the network's business)."""

    @classmethod
    def from_environment(cls, values: Mapping[str, str] = os.environ) -> "Stack":
        """Raises `UserError` naming the variables that are missing or of the wrong form."""
        if missing := [name for name in REQUIRED if not values.get(name)]:
            given = next((name for name in ADDRESSES if values.get(name)), "")
            raise UserError(
                f"{', '.join(missing)} must be set too: with {given} the environment describes the whole stack. "
                f"Without any of {', '.join(ADDRESSES)} it is read from {STACK_FILE}"
            )
        for name, (form, allowed) in FORMS.items():
            if not re.fullmatch(form, values.get(name, "")):
                shown = "its value" if name == env.POSTGRES_URL else repr(values[name])  # it holds a password
                raise UserError(f"{name}: {shown} is not allowed; allowed: {allowed}")
        home = stack_home(values)
        return cls(
            home=home,
            temporal_address=values[env.TEMPORAL_ADDRESS],
            namespace=values.get(env.TEMPORAL_NAMESPACE) or "default",
            temporal_ui=values.get(env.TEMPORAL_UI, ""),
            postgres_url=f"postgresql+psycopg://{values[env.POSTGRES_URL].partition('://')[2]}",
            coordinator_address=values[env.COORDINATOR_ADDRESS],
            gateway_address=values.get(env.GATEWAY_ADDRESS, ""),
            weights_dir=Path(values.get(env.WEIGHTS_DIR) or home / "weights"),
            checkpoints_dir=Path(values.get(env.CHECKPOINTS_DIR) or home / "checkpoints"),
            instances=tuple(instance_id(number) for number in range(int(values[env.INSTANCES]))),
            stack_id=values.get(env.STACK_ID, ""),
            temporal_id=values.get(env.TEMPORAL_ID, ""),
            store_id=values.get(env.STORE_ID, ""),
        )


def described_by_environment(values: Mapping[str, str] = os.environ) -> bool:
    """The stack is run by others; `psrl up` and `psrl down` have no part in it."""
    return any(values.get(name) for name in ADDRESSES)


def stack_home(values: Mapping[str, str] = os.environ) -> Path:
    """`$PSRL_HOME`, else `.psrl` in the working directory; it need not exist. Raises `UserError` when it cannot be a
    directory."""
    try:
        home = Path(values.get(HOME_VARIABLE) or ".psrl").absolute()
    except FileNotFoundError as error:
        raise UserError(f"the working directory has been removed: go to another, or set {HOME_VARIABLE}") from error
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    if not there.is_dir():
        raise UserError(f"{HOME_VARIABLE}={home}: {there} is a file; allowed: a directory, or a path for a new one")
    return home


def load_stack(home: Path | None = None) -> Stack:
    """From the environment when that describes one, else from the file. Raises `UserError` when no stack was started
    there."""
    if described_by_environment():
        return Stack.from_environment()
    file = (home or stack_home()) / STACK_FILE
    try:
        return Stack.model_validate_json(file.read_bytes())
    except FileNotFoundError as error:
        raise UserError(f"no stack under {file.parent}: start one with `psrl up`, or set {HOME_VARIABLE}") from error
    except ValidationError as error:
        raise UserError(
            f"{file} is damaged ({error.error_count()} errors); `psrl down` and `psrl up` recreate it"
        ) from error
