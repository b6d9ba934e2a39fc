"""What a stack was started with: kept beside its data, so that the next `psrl up` finds the same database and ports."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from ...schemas.errors import UserError
from ...schemas.stack import STACK_FILE, Stack
from ..semaphores import name_of
from .parts import COORDINATOR, GATEWAY, KINDS, POSTGRES, ROLLOUT, TEMPORAL, instance_ids
from .ports import LOOPBACK, TEMPORAL_UI

SETTINGS_FILE = "settings.json"
DATABASE = USER = "psrl"
DEFAULT_INSTANCES = 2
SERVERS = ("postgres_url", "temporal_address", "namespace")
"""Which existing servers are used."""


@dataclass(frozen=True)
class UpRequest:
    """What the user asked for; None means as before, or the default."""

    home: Path
    cwd: Path
    instances: int | None = None
    parts: tuple[str, ...] | None = None
    ports: Mapping[str, int] = field(default_factory=dict)
    postgres_url: str | None = None
    temporal_address: str | None = None
    namespace: str | None = None
    start_timeout_s: float = 300.0
    accept_changed_servers: bool = False
    """Existing servers at the same addresses, but others than before, or with other data, are the right ones."""


class Settings(BaseModel):
    """The merged answer."""

    model_config = ConfigDict(frozen=True)

    instances: int = DEFAULT_INSTANCES
    parts: tuple[str, ...] = KINDS
    ports: dict[str, int] = {}
    postgres_password: str = Field(default_factory=lambda: secrets.token_urlsafe(18))
    postgres_url: str = ""
    """An existing server; empty: our own."""
    temporal_address: str = ""
    """An existing server; empty: our own."""
    namespace: str = "default"
    temporal_id: str = ""
    store_id: str = ""
    """Who answered at the last start (`Stack`); empty: nobody yet."""
    cwd: Path = Path(".")

    @property
    def embedded(self) -> tuple[str, ...]:
        """The parts this stack runs itself."""
        external = {POSTGRES: self.postgres_url, TEMPORAL: self.temporal_address}
        return tuple(part for part in self.parts if not external.get(part))

    @property
    def port_names(self) -> list[str]:
        names = [part for part in (POSTGRES, TEMPORAL, COORDINATOR, GATEWAY) if part in self.embedded]
        return [*names, TEMPORAL_UI] if TEMPORAL in names else names

    @property
    def store_url(self) -> str:
        if self.postgres_url:
            return self.postgres_url
        url = URL.create(
            "postgresql+psycopg", USER, self.postgres_password, LOOPBACK, self.ports.get(POSTGRES), DATABASE
        )
        return url.render_as_string(hide_password=False)

    def stack(self, home: Path) -> Stack:
        embedded_temporal = TEMPORAL in self.embedded
        return Stack(
            home=home,
            temporal_address=self.temporal_address or f"{LOOPBACK}:{self.ports.get(TEMPORAL, 0)}",
            namespace=self.namespace,
            temporal_ui=f"http://{LOOPBACK}:{self.ports[TEMPORAL_UI]}" if embedded_temporal else "",
            postgres_url=self.store_url,
            coordinator_address=f"{LOOPBACK}:{self.ports.get(COORDINATOR, 0)}",
            gateway_address=f"{LOOPBACK}:{self.ports[GATEWAY]}" if GATEWAY in self.ports else "",
            weights_dir=home / "weights",
            checkpoints_dir=home / "checkpoints",
            instances=instance_ids(self.instances) if ROLLOUT in self.parts else (),
            stack_id=name_of(home),
            temporal_id=self.temporal_id,
            store_id=self.store_id,
        )


def load_settings(home: Path) -> Settings | None:
    """None when nothing was started under `home` before."""
    file = home / SETTINGS_FILE
    try:
        return Settings.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise UserError(
            f"{file} is damaged ({error.error_count()} errors). It holds the password of the embedded PostgreSQL: "
            f"restore it, or move {home} away to start afresh"
        ) from error


def merge(request: UpRequest, before: Settings | None) -> Settings:
    """The user's wishes on top of what was there before; ports are chosen later."""
    if request.instances is not None and request.instances < 1:
        raise UserError(f"--instances={request.instances}; allowed: 1 or more")
    if not request.start_timeout_s > 0:
        raise UserError(f"--start-timeout-s={request.start_timeout_s}; allowed: more than 0")
    asked = {
        "instances": request.instances,
        "parts": request.parts,
        "postgres_url": None if request.postgres_url is None else normal_url(request.postgres_url),
        "temporal_address": request.temporal_address,
        "namespace": request.namespace,
        "cwd": request.cwd,
    }
    given = {key: value for key, value in asked.items() if value is not None}
    known = before or Settings()
    merged = known.model_copy(update=given)
    return merged.model_copy(update=_strangers(merged, known, request.accept_changed_servers))


def _strangers(merged: Settings, known: Settings, accept: bool) -> dict[str, str]:
    """The servers to forget the ids of: those that are to be others from now on."""
    moved = {
        "temporal_id": (merged.temporal_address, merged.namespace) != (known.temporal_address, known.namespace),
        "store_id": merged.postgres_url != known.postgres_url,
    }
    return {name: "" for name, other in moved.items() if other or accept}


def save(settings: Settings, home: Path) -> Stack:
    """Write both files, readable by the owner only: they hold the password."""
    stack = settings.stack(home)
    _write(home / SETTINGS_FILE, settings)
    _write(home / STACK_FILE, stack)
    return stack


def forget_servers(failed: Settings, before: Settings | None, home: Path) -> None:
    """After a start that failed: the next `psrl up` goes to the servers of the last one that worked, not to an address
    that may have been mistyped. The rest stays: an embedded PostgreSQL may have been made with this password."""
    known = before or Settings()
    servers = {key: getattr(known, key) for key in SERVERS}
    if all(getattr(failed, key) == value for key, value in servers.items()):
        return
    servers |= {"temporal_id": known.temporal_id, "store_id": known.store_id}
    if before is not None and all(name in before.ports for name in before.port_names):
        save(before, home)
        return
    # No start has worked yet.
    _write(home / SETTINGS_FILE, failed.model_copy(update=servers))
    (home / STACK_FILE).unlink(missing_ok=True)  # it names servers that were never ours


def _write(file: Path, content: BaseModel) -> None:
    written = file.with_name(f"{file.name}.new")
    written.touch(mode=0o600)
    written.write_text(content.model_dump_json(indent=2) + "\n")
    written.replace(file)


def normal_url(text: str) -> str:
    """A PostgreSQL URL in the form SQLAlchemy and psycopg 3 want; empty stays empty."""
    if not text:
        return ""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:  # the latter for a port that is no number
        raise UserError(
            f"--postgres-url={text!r} is not a URL; allowed: postgresql://USER:PASSWORD@HOST:PORT/DB"
        ) from error
    if url.get_backend_name() not in ("postgresql", "postgres"):
        raise UserError(f"--postgres-url={text!r} is not PostgreSQL; allowed: postgresql://USER:PASSWORD@HOST:PORT/DB")
    return url.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
