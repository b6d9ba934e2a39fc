"""What a simulated run gave, as numbers. `psrl simulate --json` prints it."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from .instance import Instance
from .world import World


class Result(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str
    steps: int
    seconds: float
    """Virtual, from the first draw to the last published version."""
    steps_per_hour: float
    tokens_per_s: float
    """Trained on."""
    samples_per_s: float
    """Trajectories trained on."""
    trainer_idle_share: float
    engine_busy_share: float
    """Of the slots of all instances, over the time."""
    staleness: dict[int, int]
    """Buffer minus version tag, to groups."""
    mean_length: float
    """Tokens of the trajectories that were trained on."""
    groups_drawn: int
    groups_trained: int
    groups_dropped: int
    """The ledger gave them up."""
    groups_filtered: int
    groups_in_flight: int
    """At the end."""
    requests: int
    """Trajectories of the groups drawn."""
    moved: int
    """Trajectories that migrated, each time counted."""
    lost_tokens: float
    """Sampled and never trained on, of what was dropped, filtered or superfluous."""
    prefilled_again: float
    """Tokens of prompts and prefixes that were computed once more, after an interruption."""

    @classmethod
    def of(
        cls, name: str, world: World, instances: Sequence[Instance], *, trainer_busy_s: float, in_flight: int
    ) -> "Result":
        seconds, steps, tally = world.clock.now, world.scenario.simulate.steps, world.tally
        slots = sum(instance.slots for instance in instances)
        return cls(
            name=name,
            steps=steps,
            seconds=seconds,
            steps_per_hour=_per(3600 * steps, seconds),
            tokens_per_s=_per(tally.trained_tokens, seconds),
            samples_per_s=_per(tally.trained_answers, seconds),
            trainer_idle_share=1 - _per(trainer_busy_s, seconds),
            engine_busy_share=_per(sum(instance.busy_s for instance in instances), slots * seconds),
            staleness=dict(sorted(tally.staleness.items())),
            mean_length=_per(tally.trained_tokens, tally.trained_answers),
            groups_drawn=tally.drawn,
            groups_trained=tally.trained,
            groups_dropped=tally.dropped,
            groups_filtered=tally.filtered,
            groups_in_flight=in_flight,
            requests=tally.requests,
            moved=tally.moved,
            lost_tokens=tally.lost_tokens,
            prefilled_again=sum(instance.engine.prefilled_again for instance in instances),
        )


def _per(amount: float, by: float) -> float:
    return amount / by if by else 0.0
