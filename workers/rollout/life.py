"""The states of a rollout host's engine and what may follow what. Used by `Host`."""

from ...schemas.messages.rollout import InstanceState
from ...workflows.machine import Table

_S = InstanceState
_LOST_OR_STOPPED = frozenset({_S.LOST, _S.STOPPED})
LIFE: Table[InstanceState] = {
    _S.STOPPED: frozenset({_S.STARTING}),
    _S.STARTING: frozenset({_S.STARTED, _S.STOPPED}),
    _S.STARTED: frozenset({_S.PULLING}) | _LOST_OR_STOPPED,
    _S.PULLING: frozenset({_S.LOADED, _S.QUARANTINED, _S.STARTED}) | _LOST_OR_STOPPED,
    _S.LOADED: frozenset({_S.SERVING, _S.PULLING}) | _LOST_OR_STOPPED,
    _S.SERVING: frozenset({_S.PAUSING}) | _LOST_OR_STOPPED,
    _S.PAUSING: frozenset({_S.LOADED}) | _LOST_OR_STOPPED,
    _S.QUARANTINED: frozenset({_S.PULLING}) | _LOST_OR_STOPPED,
    _S.LOST: frozenset({_S.STOPPED}),
}
"""From each state, the states that may follow. A pull that did not touch the engine leads back to where it began."""
WHOLE = frozenset({_S.STARTED, _S.LOADED, _S.SERVING})
"""The weights in the engine are whole, even if of no published version: a start may keep it."""
WITHOUT_ENGINE = frozenset({_S.STOPPED, _S.STARTING, _S.LOST})
