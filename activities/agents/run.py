"""One run of an agent, in a process of its own.

Promises: the agent and all that it starts end with the run, however it ends, and with this process; past its limit it
is killed; what it printed is kept.
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...schemas.config.reward import PROCESS_STARTS_WITHIN_S
from ...schemas.errors import UserCodeFailed, UserError
from ...schemas.messages.agents import AgentTask
from ...schemas.messages.episodes import TerminateReason
from ..user_code.prepared import Recipe
from ..user_code.process import UserProcess
from ..user_code.threads import call_in_thread
from .agent import AgentSaid, Assignment
from .output import Output

CONTEXT_IS_FULL = "context_length_exceeded"
"""The code with which the gateway refuses a turn for which there is no room. An agent that dies of it names it."""


SAID_NOTHING = AgentSaid()


@dataclass(frozen=True)
class Ended:
    """How the agent ended."""

    reason: TerminateReason
    said: AgentSaid = SAID_NOTHING
    error: str = ""


class _Late(Exception):
    """For what, as its text."""


async def run_to_its_end(recipe: Recipe, task: AgentTask, limit_s: float, printed_to: Path) -> Ended:
    with tempfile.TemporaryDirectory(prefix=f"psrl-agent-{task.session_id}-", ignore_cleanup_errors=True) as folder:
        output = Output(printed_to)
        process = UserProcess(recipe, output=output.write_end)
        try:
            await _within("imported", PROCESS_STARTS_WITHIN_S, process.start)
            said = await _within("done", limit_s, process.ask, Assignment(task, folder), limit_s)
            reason = TerminateReason.DROPPED if said.drop else TerminateReason.FINISHED
            return Ended(reason, said, said.drop)
        except _Late as late:
            return Ended(TerminateReason.TRAJECTORY_TIMEOUT, error=f"{late}, and killed")
        except (UserCodeFailed, UserError) as failure:
            # Everything that it has printed is read before its last words are looked at.
            await asyncio.to_thread(_end, process, output)
            return _failed(str(failure), output)
        finally:
            await asyncio.to_thread(_end, process, output)


def _failed(how: str, output: Output) -> Ended:
    last = output.last_words
    if CONTEXT_IS_FULL in how + last:
        return Ended(TerminateReason.MAX_RESPONSE_LENGTH_EXCEEDED, error=how)
    told = f"; its last words ({output.file}): {last}" if last else ""
    return Ended(TerminateReason.ROLLOUT_ERROR, error=f"{how}{told}")


async def _within(what: str, limit_s: float, work: Any, *arguments: Any) -> Any:
    result = call_in_thread("an agent", lambda: work(*arguments))
    # Read, or asyncio reports it as never retrieved when this call is not waited for any more.
    result.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    done, _ = await asyncio.wait([result], timeout=limit_s)
    if not done:
        raise _Late(f"not {what} within {limit_s:g} s")
    return result.result()


def _end(process: UserProcess, output: Output) -> None:
    process.end()
    output.close()
