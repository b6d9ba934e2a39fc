"""A complete group's verdict. Asked by `score` when it has stored the score that completes the group, and by a resumed
run about the groups it finds complete.

Promises: a filter that raises, hangs or returns what it may not fails the group by name; it never lets one pass. A
user's own runs in a thread, with the limits of a reward, never in a workflow.
"""

from ...schemas.config import RunConfig
from ...schemas.errors import FilterLoadError, UserCodeFailed
from ...schemas.messages.rewards import GroupVerdict, ScoredGroup, Verdict
from ...schemas.text import storable
from ..user_code.attempts import with_attempts
from ..user_code.calls import UserCalls
from ..user_code.kept import KeptPerRun
from ..user_code.prepared import MAX_LINE
from .plug_in import recipe
from .registry import BUILT_IN, filter_name


class Verdicts:
    """One per process: a plug-in's calls share its limits over all groups of a run."""

    def __init__(self) -> None:
        self._plug_ins = KeptPerRun[UserCalls](UserCalls.close)

    def close(self) -> None:
        self._plug_ins.clear()

    async def of(self, run: str, config: RunConfig, group: ScoredGroup, *, apart: bool = False) -> GroupVerdict:
        """`run` is the workflow run id: a run resumed with a repaired filter is another one. The configuration names a
        filter. `apart`: a plug-in runs in a process of its own whatever was chosen."""
        name = filter_name(config)
        assert name is not None
        try:
            reason = await self._reason(run, config, name, group, apart)
        except (UserCodeFailed, FilterLoadError) as failure:
            said = f"group filter {name} failed: {failure}"
            return GroupVerdict(verdict=Verdict.FAILED, reason=storable(said, MAX_LINE))
        if reason is None:
            return GroupVerdict(verdict=Verdict.KEEP)
        return GroupVerdict(verdict=Verdict.DROP, reason=reason)

    async def _reason(self, run: str, config: RunConfig, name: str, group: ScoredGroup, apart: bool) -> str | None:
        if name in BUILT_IN:
            return BUILT_IN[name](config)(group)
        calls = self._plug_ins.get(run, lambda: UserCalls("group filter", recipe(name), config.reward))

        async def attempt() -> str | None:
            reason: str | None = await calls.call(group, apart=apart)
            return reason

        return await with_attempts(f"group filter {name}", attempt, config.reward.max_attempts)
