"""What every Temporal server of ours must be told at its start: the local stack, the tests and the operator's notes use
the same two tables."""

from temporalio.common import SearchAttributeKey

RL_RUN = SearchAttributeKey.for_keyword("RlRun")
"""The run a workflow belongs to."""
RL_STEP = SearchAttributeKey.for_int("RlStep")
"""The buffer a step trains on."""
RL_GROUP = SearchAttributeKey.for_keyword("RlGroup")
RL_STATE = SearchAttributeKey.for_keyword("RlState")
"""State of the entity in its own words: running, paused, serving, complete …"""
RL_POLICY_VERSION = SearchAttributeKey.for_int("RlPolicyVersion")
RL_REWARD = SearchAttributeKey.for_float("RlReward")

SEARCH_ATTRIBUTES: dict[str, str] = {
    RL_RUN.name: "Keyword",
    RL_STEP.name: "Int",
    RL_GROUP.name: "Keyword",
    RL_STATE.name: "Keyword",
    RL_POLICY_VERSION.name: "Int",
    RL_REWARD.name: "Double",
}
"""Name to type, as `temporal operator search-attribute create` spells types. An unregistered one fails a workflow task
for ever, so they are registered before the first worker starts."""

DYNAMIC_CONFIG: dict[str, str] = {
    "history.transferProcessorMaxPollRPS": "1000",
    "history.timerProcessorMaxPollRPS": "1000",
    "history.maxInFlightUpdates": "1000",
}
"""Without the first two, a server with few shards adds up to 50 ms to every hop; above the default of ten updates in
flight, one workflow's throughput collapses."""


def dev_server_flags() -> list[str]:
    """Both tables as flags of `temporal server start-dev`."""
    flags: list[str] = []
    for name, kind in SEARCH_ATTRIBUTES.items():
        flags += ["--search-attribute", f"{name}={kind}"]
    for key, value in DYNAMIC_CONFIG.items():
        flags += ["--dynamic-config-value", f"{key}={value}"]
    return flags
