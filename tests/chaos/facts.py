"""What the store says of a run while it is disturbed: when each part last did something, and how far the run is."""

import asyncio
from dataclasses import dataclass, field

import psycopg

from .site import Site

PULSE = """
    select 'segment ' || instance, extract(epoch from max(started_at))::float8 from segments
        where run_id = %(run)s group by instance
    union all select 'scored', extract(epoch from max(scored_at))::float8 from trajectories where run_id = %(run)s
    union all select 'turn', extract(epoch from max(t.started_at))::float8 from turns t where t.run_id = %(run)s
    union all select 'drawn', extract(epoch from max(created_at))::float8 from groups where run_id = %(run)s
    union all select 'batch', extract(epoch from max(created_at))::float8 from batches where run_id = %(run)s
    union all select 'version', extract(epoch from max(published_at))::float8 from weight_versions
        where run_id = %(run)s
    union all select 'newest', max(version)::float8 from weight_versions where run_id = %(run)s
"""


@dataclass
class Pulse:
    """Unix times of the newest row of each kind; 0 where there is none."""

    at: dict[str, float] = field(default_factory=dict)
    version: int = 0

    def since(self, moment: float, *kinds: str) -> bool:
        """Something of these kinds (any kind, when none is named) began after `moment`."""
        wanted = kinds or tuple(self.at)
        return any(self.at.get(kind, 0.0) > moment for kind in wanted)


class Monitor:
    """Reads the pulse again and again, whatever happens to PostgreSQL."""

    def __init__(self, site: Site, run: str) -> None:
        self._site, self._run = site, run
        self.pulse = Pulse()

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(self._site.store, connect_timeout=2, autocommit=True)
                async with connection:
                    while True:
                        self.pulse = await _read(connection, self._run)
                        await asyncio.sleep(0.3)
            except psycopg.Error:
                await asyncio.sleep(0.2)


async def _read(connection: psycopg.AsyncConnection, run: str) -> Pulse:
    rows = dict(await (await connection.execute(PULSE, {"run": run})).fetchall())
    newest = rows.pop("newest", None)
    return Pulse({kind: at or 0.0 for kind, at in rows.items()}, int(newest or 0))
