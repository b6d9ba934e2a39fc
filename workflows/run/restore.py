"""From what the store knows of an ended run to the state in which it goes on. Pure; used by `TrainingRun`."""

from typing import Any, NamedTuple

from ...schemas.config import RunConfig
from ...schemas.ids import GroupId, Version
from ...schemas.messages.data import Restored
from ..ledger import Ledger
from .state import RunState


class TakenUp(NamedTuple):
    state: RunState
    lost: tuple[GroupId, ...]
    """Complete groups that no buffer may take any more: counted as dropped."""


def take_up(restored: Restored, config: RunConfig) -> TakenUp:
    """The ledger holds the complete groups again, under the same rule that admitted them the first time."""
    ledger = empty_ledger(config, restored.version, consumed=bool(restored.batch))
    lost: list[GroupId] = []
    for group in restored.kept:
        tag = Version(group.version_tag)
        if ledger.free(tag) < 1:
            lost.append(group.group_id)
            continue
        ledger.reserve(tag, [group.group_id])
        ledger.occupy(group.group_id)
    state = RunState(
        admission=restored.admission,
        ledger=ledger.to_dict(),
        next_group=restored.next_group,
        next_place=restored.next_place,
        redraw=restored.redraw,
        open_batch=restored.batch,
        dropped=restored.dropped,
        reward_mean=restored.reward_mean,
    )
    return TakenUp(state, tuple(lost))


def empty_ledger(config: RunConfig, version: int = 0, consumed: bool = False) -> Ledger:
    """`consumed`: the buffer of this version was taken already and waits to be trained."""
    snapshot: dict[str, Any] = Ledger(
        staleness=config.psrl.staleness,
        batch_groups=config.psrl.staleness_buffer_entries,
        offered_groups=config.psrl.offered_groups,
    ).to_dict()
    return Ledger.from_dict(snapshot | {"version": version, "buffer": version + consumed})
