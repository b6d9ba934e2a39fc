"""A group filter of the user's, ready to be asked. Made in each process that calls it, from its import path."""

from typing import Any

from ...schemas.errors import FilterLoadError, UserCodeFailed
from ...schemas.messages.rewards import ScoredGroup
from ...schemas.text import first_line, shown, storable
from ..user_code.load import is_async, load_function, signature_of, takes_one
from ..user_code.prepared import MAX_LINE, Recipe

KEY = "psrl.group_post_process.name"


class PlugIn:
    about = None
    at_once: int | None = None

    def __init__(self, path: str) -> None:
        """Raises `FilterLoadError`."""
        self.function = load_function(KEY, path, FilterLoadError)
        self.is_async = is_async(self.function)
        signature = signature_of(self.function)
        if signature is not None and not takes_one(signature, {}):
            raise FilterLoadError(
                f"{KEY}={path!r} takes {signature}; allowed: a function of one argument, the `ScoredGroup`"
            )

    def ask(self, argument: ScoredGroup) -> Any:
        return self.function(argument)

    def read(self, argument: ScoredGroup, returned: Any) -> str | None:
        """True and False are refused: whoever reads them cannot tell whether they mean to keep or to drop."""
        if returned is None:
            return None
        if isinstance(returned, str) and (reason := first_line(returned)):
            return storable(reason, MAX_LINE)
        raise UserCodeFailed(f"returned {shown(returned)}; allowed: None to train on the group, or why it is left out")


def recipe(path: str) -> Recipe:
    return Recipe(PlugIn, (path,), f"{KEY}={path!r}", FilterLoadError)
