"""A complete group's verdict. Asked by `score` when it has stored the score that completes the group, and by a resumed
run about the groups it finds complete.

Promises: a filter that raises, hangs or returns what it may not fails the group by name; it never lets one pass. A
user's own runs in a thread, with the limits of a reward, never in a workflow.
"""

from typing import Any

from ...schemas.config import RunConfig
from ...schemas.errors import FilterLoadError, UserCodeFailed
from ...schemas.messages.rewards import GroupVerdict, ScoredGroup, Verdict
from ...schemas.text import first_line, storable
from ..user_code.attempts import MAX_LINE, shown, with_attempts
from ..user_code.calls import UserCalls
from ..user_code.kept import KeptPerRun
from .registry import BUILT_IN, filter_name, load_plug_in


class Verdicts:
    """One per process: a plug-in's calls share its limits over all groups of a run."""

    def __init__(self) -> None:
        self._plug_ins = KeptPerRun[UserCalls]()

    async def of(self, run: str, config: RunConfig, group: ScoredGroup) -> GroupVerdict:
        """`run` is the workflow run id: a run resumed with a repaired filter is another one. The configuration names a
        filter."""
        name = filter_name(config)
        assert name is not None
        try:
            reason = await self._reason(run, config, name, group)
        except (UserCodeFailed, FilterLoadError) as failure:
            said = f"group filter {name} failed: {failure}"
            return GroupVerdict(verdict=Verdict.FAILED, reason=storable(said, MAX_LINE))
        if reason is None:
            return GroupVerdict(verdict=Verdict.KEEP)
        return GroupVerdict(verdict=Verdict.DROP, reason=reason)

    async def _reason(self, run: str, config: RunConfig, name: str, group: ScoredGroup) -> str | None:
        if name in BUILT_IN:
            return BUILT_IN[name](config)(group)
        calls = self._plug_ins.get(run, lambda: UserCalls("group filter", load_plug_in(name), config.reward))

        async def attempt() -> str | None:
            return _checked(await calls.call(group))

        return await with_attempts(f"group filter {name}", attempt, config.reward.max_attempts)


def _checked(answer: Any) -> str | None:
    """True and False are refused: whoever reads them cannot tell whether they mean to keep or to drop."""
    if answer is None:
        return None
    if isinstance(answer, str) and (reason := first_line(answer)):
        return storable(reason, MAX_LINE)
    raise UserCodeFailed(f"returned {shown(answer)}; allowed: None to train on the group, or why it is left out")
