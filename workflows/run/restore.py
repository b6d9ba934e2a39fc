"""From what the store knows of an ended run to the state in which it is resumed. Pure; used by `opening`."""

from typing import Any

from ...schemas.config import RunConfig
from ...schemas.ids import GroupId, Version
from ...schemas.messages.data import Restored
from ...schemas.status import GroupStatus
from ..ledger import Ledger
from .control import Control
from .groups import Groups
from .state import Position, RunState


def take_up(restored: Restored, config: RunConfig, control: Control) -> RunState:
    """The ledger holds the complete groups again, under the same rule that admitted them the first time; those that no
    buffer may take any more are dropped."""
    groups = Groups(
        ledger=empty_ledger(config, restored.version, consumed=bool(restored.batch)), dropped=dict(restored.dropped)
    )
    lost: list[GroupId] = []
    for group in restored.kept:
        tag = Version(group.version_tag)
        if groups.ledger.free(tag) < 1:
            lost.append(group.group_id)
            continue
        groups.ledger.reserve(tag, [group.group_id])
        groups.ledger.occupy(group.group_id)
    groups.give_up(lost, GroupStatus.DROPPED)
    groups.see_off(restored.unfinished, GroupStatus.ABORTED)
    return RunState(
        admission=restored.admission,
        control=control,
        groups=groups,
        position=Position(next_group=restored.next_group, next_place=restored.next_place, redraw=list(restored.redraw)),
        open_batch=restored.batch,
        reward_mean=restored.reward_mean,
    )


def empty_ledger(config: RunConfig, version: int = 0, consumed: bool = False) -> Ledger:
    """`consumed`: the buffer of this version was taken already and waits to be trained."""
    snapshot: dict[str, Any] = Ledger(
        staleness=config.psrl.staleness,
        batch_groups=config.psrl.staleness_buffer_entries,
        offered_groups=config.psrl.offered_groups,
    ).to_dict()
    return Ledger.from_dict(snapshot | {"version": version, "buffer": version + consumed})
