"""What a session is started with, as the run's configuration and its group say. Used by the gateway and the agent
runner: whoever is first starts it."""

from ...schemas.config import RunConfig
from ...schemas.messages.data import Purpose
from ...schemas.messages.run import RolloutSettings
from ...schemas.messages.sessions import SessionLimits, StartSession
from .sessions import StoredSession


def start_of(session: StoredSession, config: RunConfig) -> StartSession:
    return StartSession(
        run_id=session.run_id,
        session_id=session.session_id,
        group_id=session.group_id,
        version_tag=session.version_tag,
        rollout=settings_of(config, session.purpose),
        limits=limits_of(config),
    )


def settings_of(config: RunConfig, purpose: Purpose) -> RolloutSettings:
    validation = purpose is Purpose.VALIDATION
    return RolloutSettings.of_validation(config) if validation else RolloutSettings.of(config)


def limits_of(config: RunConfig) -> SessionLimits:
    agentic = config.psrl.agentic_rl
    return SessionLimits(
        timeout_s=config.psrl.group_timeout_s,
        idle_s=agentic.session_idle_timeout_s,
        hang_s=agentic.session_hang_timeout_s,
        drain_s=agentic.session_drain_timeout_s,
    )
