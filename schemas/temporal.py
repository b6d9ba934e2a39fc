"""What every Temporal server of ours is told at its start: the local stack and the tests share it."""

SEARCH_ATTRIBUTES: dict[str, str] = {
    "RlRun": "Keyword",
    "RlStep": "Int",
    "RlGroup": "Keyword",
    "RlState": "Keyword",
    "RlPolicyVersion": "Int",
    "RlReward": "Double",
}
"""Name to type, as `temporal operator search-attribute create` spells types. An unregistered one fails a workflow task
forever, so they are registered before the first worker starts. `schemas.search` has the keys."""

DYNAMIC_CONFIG: dict[str, str] = {
    "history.transferProcessorMaxPollRPS": "1000",
    "history.timerProcessorMaxPollRPS": "1000",
    "history.maxInFlightUpdates": "1000",
    "history.workflowIdReuseMinimalInterval": '"10ms"',
    "history.transferProcessorUpdateAckInterval": '"2s"',
    "history.timerProcessorUpdateAckInterval": '"2s"',
    "history.visibilityProcessorUpdateAckInterval": '"2s"',
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
    "system.forceSearchAttributesCacheRefreshOnRead": "false",
}
"""Without the first two, a server with few shards adds up to 50 ms to every hop; above the default of ten updates in
flight, one workflow's throughput collapses. The server walks through all queue tasks done since the last
acknowledgement whenever a new one comes: with the default of 30 seconds that is a tenth of its processor time. A
development server reads what search attributes there are from its database at every use, unless told to keep it for a
minute; ours are registered before anything uses them."""


def dev_server_flags() -> list[str]:
    """Both tables as flags of `temporal server start-dev`."""
    flags: list[str] = []
    for name, kind in SEARCH_ATTRIBUTES.items():
        flags += ["--search-attribute", f"{name}={kind}"]
    for key, value in DYNAMIC_CONFIG.items():
        flags += ["--dynamic-config-value", f"{key}={value}"]
    return flags
