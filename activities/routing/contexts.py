"""What the coordinator must know of a request's context, read from the store just before it is asked, and only where
the run's strategy looks at it.

Of a branch of a session, what it has in common with the branch that it left is not counted.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from ...schemas.ids import GroupId, RunId
from ...schemas.messages.rollout import RouteRequest
from ...schemas.status import SegmentKind
from ...schemas.tables import Group, Segment, Turn
from ..loaded import LoadedOnce
from ..store.codec import decode_ids
from ..store.connections import one_statement_each
from .prefix import prefix_blocks

KEPT_PROMPTS = 1024


class Contexts:
    def __init__(self, store: AsyncEngine) -> None:
        self._reads = one_statement_each(store)
        self._prompts = LoadedOnce[tuple[RunId, GroupId], list[int]](KEPT_PROMPTS)

    async def fill(self, request: RouteRequest) -> RouteRequest:
        """The request with `tokens`, `sampled` and `blocks`, as far as its strategy looks at them."""
        strategy = request.strategy
        if not (strategy.looks_at_lengths or strategy.looks_at_tokens):
            return request
        key = (request.run_id, request.group_id)
        prompt = await self._prompts.get(key, lambda: self._prompt(request))
        lengths = await self._lengths(request)
        told = {
            "tokens": tuple(len(prompt) + sum(lengths.get(index, (0, 0))) for index in request.indices),
            "sampled": tuple(lengths.get(index, (0, 0))[1] for index in request.indices),
            "blocks": (),
        }
        if strategy.looks_at_tokens:
            shared = [*prompt, *await self._own(request)] if len(request.indices) == 1 else prompt
            told["blocks"] = prefix_blocks(shared, strategy.cache_aware_policy.block_size)
        return request.model_copy(update=told)

    async def _prompt(self, request: RouteRequest) -> list[int]:
        query = select(Group.prompt_ids).where(Group.run_id == request.run_id, Group.group_id == request.group_id)
        async with self._reads.connect() as connection:
            return decode_ids((await connection.execute(query)).scalar_one())

    async def _lengths(self, request: RouteRequest) -> Mapping[int, tuple[int, int]]:
        """Of each index that has any: tokens after the prompt but for those of an unfinished turn, and those."""
        unfinished = (Turn.end.is_(None)) & (Segment.kind == SegmentKind.SAMPLED)
        count = func.sum(Segment.tokens)
        query = (
            select(
                Segment.index, func.coalesce(count.filter(~unfinished), 0), func.coalesce(count.filter(unfinished), 0)
            )
            .join(
                Turn,
                (Turn.run_id == Segment.run_id)
                & (Turn.group_id == Segment.group_id)
                & (Turn.index == Segment.index)
                & (Turn.turn == Segment.turn),
            )
            .where(*_of(request), Segment.index.in_(request.indices))
            .group_by(Segment.index)
        )
        async with self._reads.connect() as connection:
            return {row[0]: (int(row[1]), int(row[2])) for row in await connection.execute(query)}

    async def _own(self, request: RouteRequest) -> Sequence[int]:
        """Token ids after the prompt, of the only index."""
        query = select(Segment.token_ids).where(*_of(request), Segment.index == request.indices[0])
        async with self._reads.connect() as connection:
            segments = await connection.scalars(query.order_by(Segment.turn, Segment.seq))
            return [token for data in segments for token in decode_ids(data)]


def _of(request: RouteRequest) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return Segment.run_id == request.run_id, Segment.group_id == request.group_id
