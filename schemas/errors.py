"""The failure model on one page.

Who may raise what, and what happens next:

- `UserError`: the user can repair it (configuration, data, a path); the message names the key, the value and what was
  allowed. Temporal does not retry it; a workflow may wait and ask again (`InstanceBusy`).
- `RetryableError`: the same call may succeed later (a part restarts, a peer is slow). Temporal retries it.
- `FatalError`: repeating cannot help and the user did nothing wrong; the run stops and says why.

Errors cross process borders as Temporal application errors whose type is the class name (`activities.boundary`).
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches


class PsrlError(Exception):
    """Root of every error this project raises on purpose."""

    retryable = False


class UserError(PsrlError):
    """Something the user wrote or configured; repeating the call cannot help."""


class ConfigError(UserError):
    """A configuration key is unknown, impossible or in conflict with another."""


class DataError(UserError):
    """A data file is missing, broken or holds no usable prompt."""


class ModelError(UserError):
    """The model directory lacks weights or a tokenizer, or does not fit the request."""


class RewardLoadError(UserError):
    """The reward's import path does not lead to a function of one argument."""


class FilterLoadError(UserError):
    """The group filter's import path does not lead to a function of one argument."""


class EnvironmentLoadError(UserError):
    """The environment's import path does not lead to an environment, or the model cannot talk with one."""


class RunExists(UserError):
    """The run id is taken."""


class Refused(UserError):
    """A run was not admitted; the message is the reason."""


class NothingToResume(UserError):
    """The run has trained every step it can."""


class RunUnknown(UserError):
    """No run of this name is in the store."""


class StoreRevisionMismatch(UserError):
    """The store's schema is not the one this release works with."""


class CaptureRefused(UserError):
    """Records of a conversation do not fit its tokens; names the turn and where they part (L5)."""


class ConversationRefused(UserError):
    """The messages, tools or template arguments of a request cannot become a turn; names the part that is wrong. The
    session lives on."""


class InstanceBusy(UserError):
    """An instance or the trainer already serves another run."""


class SessionClosed(UserError):
    """The session takes no more turns: it is closing or closed."""


class TurnInFlight(UserError):
    """The branch has a turn in flight; a conversation has one at a time."""


class RetryableError(PsrlError):
    """The same call may succeed later."""

    retryable = True


class Unreachable(RetryableError):
    """PostgreSQL, Temporal or the coordinator did not answer; says what was tried and for how long."""


class NotOurs(Unreachable):
    """A server of another stack answers at an address of ours (L14). Ours may come back, hence retryable; nothing is
    read from this one, written to it or started there."""


class EngineUnavailable(RetryableError):
    """The engine is not in a state that can serve this call (starting, paused too long, being repaired)."""


class StorageFull(RetryableError):
    """A disk or quota has no room for what must be written; says where, how much is needed and how much is free. The
    step that meets it is held, not failed: it continues when there is room."""


class UserCodeFailed(RetryableError):
    """A reward or a group filter raised, ran out of time, or returned what it may not. Never the same as a reward of
    0.0, nor as a group that may be trained on."""


class FatalError(PsrlError):
    """Repeating cannot help."""


class StaleAttempt(FatalError):
    """A newer attempt owns this trajectory; the late result is refused (fencing)."""


class WeightsRefused(FatalError):
    """A version's bytes or its loaded log-probs are not what the trainer published."""


class EngineUnfit(FatalError):
    """No engine of this kind can serve the run, whatever is tried again: it does not know the model, or takes its
    weights otherwise than they are published."""


class LedgerError(FatalError):
    """A transition the ledger does not allow. A defect of ours: no user input leads here."""


class InvariantViolated(FatalError):
    """One of the promises L1-L14 does not hold; names the promise and the ids."""


def another_stacks(what: str, address: str, found: str, expected: str) -> NotOurs:
    """The one message for every server that is another stack's."""
    return NotOurs(
        f"{address} is the {what} of another stack ({found}, ours is {expected}). `psrl up` moves a server of this "
        "stack to another port; one that was replaced on purpose is accepted with "
        "`psrl up --accept-changed-servers`"
    )


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for a likely typing error, else an empty string. A name that has all words of the wrong
    one is likelier than one that looks like it: `total_steps` lacks a word of `total_training_steps`."""
    names = list(known)
    words = _words(word)
    longer = [name for name in names if words and words <= _words(name)]
    found = get_close_matches(word, longer, n=1, cutoff=0.0) or get_close_matches(word, names, n=1, cutoff=0.6)
    return f" (did you mean {found[0]!r}?)" if found else ""


def _words(name: str) -> set[str]:
    return set(re.findall("[a-z0-9]+", name.lower()))


def one_line(fault: object) -> str:
    """What a library said over several lines, as the one line that is shown to people."""
    return " ".join(str(fault).split())
