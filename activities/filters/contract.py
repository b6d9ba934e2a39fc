"""What a group filter is."""

from collections.abc import Callable

from ...schemas.messages.rewards import ScoredGroup

GroupFilter = Callable[[ScoredGroup], str | None]
"""Why the group is left out, or None to train on it. A function of the group alone: a run that is resumed asks again
about the groups it finds complete."""
