"""Ids and the names built from them.

Workflow ids and task queues are spelled here, so that a name seen in the web UI can be traced to one line; activity ids
are put together by the workflow that makes the call. Numbers that grow are zero-padded: lists sort as people expect.
"""

import re
from collections.abc import Sequence
from typing import NewType

RunId = NewType("RunId", str)
GroupId = NewType("GroupId", str)
"""`000123` for a training group, `v000007-0012` for prompt 12 of the validation round at version 7."""
InstanceId = NewType("InstanceId", str)
"""`rollout-0`: one rollout engine of the stack."""
SessionId = NewType("SessionId", str)
"""`000123-t04`: the conversation that is episode 4 of group 000123."""
Version = NewType("Version", int)
"""Number of published weight updates; the initial weights are version 0."""

RUN_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Run ids become workflow ids, folder names and URL parts."""
RUN_ID_RULE = "up to 100 of letters, digits, '.', '_', '-', the first a letter or digit"

ORCHESTRATOR_QUEUE = "psrl"
"""Workflows, and the activities that only touch the store or the coordinator."""
CPU_QUEUE = "psrl.cpu"
"""Data, reward and environment activities: CPU work that may import user code."""
AGENT_QUEUE = "psrl.agents"
"""Runs of agents from outside, which take minutes: scoring must not wait for them."""
TRAINER_QUEUE = "psrl.trainer"


def instance_id(number: int) -> InstanceId:
    return InstanceId(f"rollout-{number}")


def rollout_queue(instance: InstanceId) -> str:
    """The task queue that only this instance's host polls."""
    return f"psrl.rollout.{instance}"


def environments_queue(process: str) -> str:
    """The task queue that only this CPU worker polls: it keeps environments in memory."""
    return f"{CPU_QUEUE}.{process}"


VALIDATION = "v"


def training_group(number: int) -> GroupId:
    """The id of the `number`-th group a run draws, from 0."""
    return GroupId(f"{number:06d}")


def validation_group(version: Version, prompt: int) -> GroupId:
    """The id of one validation prompt at one version; no training group has such an id."""
    return GroupId(f"{VALIDATION}{version:06d}-{prompt:04d}")


def is_validation(group: GroupId) -> bool:
    return group.startswith(VALIDATION)


def group_workflow(run: RunId, group: GroupId) -> str:
    return f"{run}/group/{group}"


def session_id(group: GroupId, episode: int, attempt: int = 1) -> SessionId:
    """Of the first attempt at an episode; `000123-t04.2` of the second."""
    again = "" if attempt == 1 else f".{attempt}"
    return SessionId(f"{group}-{trajectory_name(episode)}{again}")


def session_workflow(run: RunId, session: SessionId) -> str:
    return f"{run}/session/{session}"


def step_workflow(run: RunId, buffer: int) -> str:
    return f"{run}/step/{buffer:06d}"


def instance_workflow(run: RunId, instance: InstanceId) -> str:
    return f"{run}/instance/{instance}"


def evaluation_workflow(run: RunId, version: Version) -> str:
    return f"{run}/evaluation/{version:06d}"


def trajectory_name(index: int) -> str:
    """`t03`: how one trajectory of a group is named in summaries and activity ids."""
    return f"t{index:02d}"


def trajectory_names(indices: Sequence[int]) -> str:
    """`t00-t07`, or `t00-t02,t05` where some between are left out."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    names = [[trajectory_name(run[0]), trajectory_name(run[-1])] for run in runs]
    return ",".join(first if first == last else f"{first}-{last}" for first, last in names)


def engine_request(group: GroupId, index: int, number: int) -> str:
    """The id of a trajectory's request in an engine. `number`: never the same twice in the life of an engine."""
    return f"{group}-{index}-{number}"


def trajectory_of(request: str) -> str:
    """The same for every request of a trajectory."""
    return request.rpartition("-")[0]
