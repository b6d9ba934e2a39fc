"""Which filter a run asked for. A further built-in is one file beside this one and one line in `BUILT_IN`."""

from collections.abc import Callable

from ...schemas.config import GroupFilterName, RunConfig
from ...schemas.config.algorithm import REWARD_ITSELF
from ...schemas.errors import FilterLoadError, UserCodeFailed
from ..user_code.process import examine
from .contract import GroupFilter
from .dynamic_sampling import dynamic_sampling
from .no_filter import no_filter
from .plug_in import KEY, recipe

BUILT_IN: dict[str, Callable[[RunConfig], GroupFilter]] = {
    GroupFilterName.DYNAMIC_SAMPLING: dynamic_sampling,
    GroupFilterName.NO_FILTER: no_filter,
}


def filter_name(config: RunConfig) -> str | None:
    """None: complete groups are not filtered."""
    chosen = config.psrl.group_post_process
    return chosen.name if chosen.enable else None


def check_filter(config: RunConfig) -> None:
    """For admission. Raises `FilterLoadError`."""
    name = filter_name(config)
    if name is not None and config.psrl.group_post_process.is_plug_in:
        try:
            examine(recipe(name))
        except UserCodeFailed as failure:
            raise FilterLoadError(f"{KEY}={name!r}: importing it failed: {failure}") from failure


def needed_metric(config: RunConfig) -> str | None:
    """The number that every reward must return for the filter, so that its lack is told by the first reward and not by
    the first complete group."""
    metric = config.algorithm.filter_groups.metric
    used = filter_name(config) == GroupFilterName.DYNAMIC_SAMPLING and metric not in REWARD_ITSELF
    return metric if used else None
