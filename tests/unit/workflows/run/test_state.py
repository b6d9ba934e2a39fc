"""The state of a run is what is carried: nothing of it may be lost on the way to the next execution."""

import json

from psrl.schemas.config import parse_config
from psrl.schemas.ids import InstanceId, Version, training_group
from psrl.schemas.messages.data import Admission
from psrl.schemas.messages.rollout import InstanceState
from psrl.schemas.messages.run import InstanceChanged, RunPhase, StepHeld
from psrl.workflows.ledger import Ledger
from psrl.workflows.run.absence import Absence
from psrl.workflows.run.carried import Carried
from psrl.workflows.run.control import Control
from psrl.workflows.run.fleet import Fleet, Instance
from psrl.workflows.run.groups import Groups
from psrl.workflows.run.rounds import Rounds
from psrl.workflows.run.state import Position, RunState
from tests.support.scripted_parts import minimal_config

ONE, TWO, THREE = (training_group(number) for number in range(3))
INSTANCE = InstanceId("rollout-0")


def full() -> RunState:
    """With something in every field of every part."""
    ledger = Ledger(staleness=1, batch_groups=1, offered_groups=2)
    ledger.reserve(Version(0), [ONE, TWO])
    ledger.occupy(ONE)
    told = InstanceChanged(instance=INSTANCE, state=InstanceState.SERVING, version=3, reason="r", quarantined_s=1.5)
    return RunState(
        admission=Admission(
            config=parse_config(minimal_config()).model_dump(mode="json"),
            total_steps=7,
            prompts=1,
            skipped_too_long=1,
            validation_prompts=1,
            data_fingerprint="f",
            notes=("n",),
        ),
        control=Control(
            phase=RunPhase.RUNNING,
            reason="r",
            paused=True,
            stopping=True,
            abandoning=True,
            held=StepHeld(buffer=3, reason="full"),
            notice="n",
        ),
        groups=Groups(
            ledger=ledger,
            started_at={TWO: 1.25},
            coming=[TWO],
            leaving={"failed": [THREE]},
            dropped={"failed": 1},
            failures=1,
            drops=2,
            last_reasons=["000002: r"],
        ),
        position=Position(next_group=3, next_place=4, redraw=[1, 2]),
        open_batch=(ONE,),
        fleet=Fleet(
            instances={INSTANCE: Instance(told=told, started_at=2.5, behind_since=2.75, restarts=1)},
            announced=4,
            missed=True,
        ),
        rounds=Rounds(open={3: 1}, accuracy=0.5),
        absence=Absence(seen_at=3.5, back_at=4.5),
        swept_at=5.5,
        stuck_s=6.5,
        idle_since=7.5,
        reward_mean=0.25,
        unannounced=True,
    )


def carried(state: RunState) -> RunState:
    """As `TrainingRun` hands it over: through JSON."""
    return RunState.model_validate(json.loads(json.dumps(state.model_dump(mode="json"))))


def test_every_field_of_every_part_survives_being_carried() -> None:
    state = full()
    assert carried(state).model_dump() == state.model_dump()


def test_that_test_leaves_no_field_at_its_default() -> None:
    def at_default(part: Carried, path: str) -> list[str]:
        found = []
        for name, field in type(part).model_fields.items():
            value = getattr(part, name)
            if isinstance(value, Carried):
                found += at_default(value, f"{path}.{name}")
            elif not field.is_required() and value == field.get_default(call_default_factory=True):
                found.append(f"{path}.{name}")
        return found

    state = full()
    (instance,) = state.fleet.instances.values()
    assert at_default(state, "state") + at_default(instance, "instance") == []


def test_what_the_next_execution_does_not_know_is_refused_not_dropped() -> None:
    for part in (RunState, Control, Groups, Position, Fleet, Instance, Rounds, Absence):
        assert part.model_config.get("extra") == "forbid"


def test_two_states_share_nothing() -> None:
    one, other = full(), carried(full())
    one.position.redraw.append(9)
    one.groups.dropped["failed"] = 9
    one.fleet.add(InstanceId("rollout-1"), 1)
    assert other.model_dump() == full().model_dump()
    fresh = [RunState(admission=one.admission, control=Control(), groups=one.groups) for _ in range(2)]
    fresh[0].fleet.add(INSTANCE, 1)
    assert not fresh[1].fleet.instances
