"""The base of every piece of a run's state."""

from pydantic import BaseModel, ConfigDict


class Carried(BaseModel):
    """Mutable while the run's workflow runs, and as it is what one execution carries to the next. A field that the next
    one does not know is refused: nothing is lost in silence."""

    model_config = ConfigDict(extra="forbid")
