"""Rows of `runs`: what a run was admitted with, for the activities that act on its behalf."""

from collections import OrderedDict
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from ...schemas.config import RunConfig, parse_config
from ...schemas.errors import RunUnknown
from ...schemas.ids import RunId
from ...schemas.tables import Run

KEPT_RUNS = 32


class AdmittedRun(NamedTuple):
    config: RunConfig
    data_fingerprint: str


class AdmittedRuns:
    """Reads runs; parses each configuration once, as every activity of a group asks for it."""

    def __init__(self) -> None:
        self._parsed: OrderedDict[tuple[str, str], RunConfig] = OrderedDict()

    async def get(self, connection: AsyncConnection, run_id: RunId) -> AdmittedRun:
        """Raises `RunUnknown`."""
        found = (
            await connection.execute(select(Run.workflow_run_id, Run.data_fingerprint).where(Run.run_id == run_id))
        ).one_or_none()
        if found is None:
            raise RunUnknown(f"run {run_id!r} is not in the store; `psrl status` lists the runs that are")
        config = await self.config(connection, run_id, found.workflow_run_id)
        return AdmittedRun(config, found.data_fingerprint)

    async def config(self, connection: AsyncConnection, run_id: RunId, workflow_run_id: str) -> RunConfig:
        """Of a run that the caller found in the store. A run that was deleted and started anew under the same id has
        another workflow run id."""
        key = (run_id, workflow_run_id)
        if key not in self._parsed:
            values = (await connection.scalars(select(Run.config).where(Run.run_id == run_id))).one()
            self._parsed[key] = parse_config(values)
            while len(self._parsed) > KEPT_RUNS:
                self._parsed.popitem(last=False)
        return self._parsed[key]
