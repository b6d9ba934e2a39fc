"""Search attributes, which workflows set and whoever starts one. They must be registered first (`schemas.temporal`): an
unknown one fails the workflow task forever."""

from typing import Any

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

RUN = SearchAttributeKey.for_keyword("RlRun")
STEP = SearchAttributeKey.for_int("RlStep")
GROUP = SearchAttributeKey.for_keyword("RlGroup")
STATE = SearchAttributeKey.for_keyword("RlState")
VERSION = SearchAttributeKey.for_int("RlPolicyVersion")
REWARD = SearchAttributeKey.for_float("RlReward")


def attributes(
    run: str, step: int | None = None, *, group: str | None = None, version: int | None = None
) -> TypedSearchAttributes:
    """Of a workflow of this run, at its start."""
    pairs: list[SearchAttributePair[Any]] = [SearchAttributePair(RUN, run), SearchAttributePair(STATE, "running")]
    if step is not None:
        pairs.append(SearchAttributePair(STEP, step))
    if group is not None:
        pairs.append(SearchAttributePair(GROUP, group))
    if version is not None:
        pairs.append(SearchAttributePair(VERSION, version))
    return TypedSearchAttributes(pairs)
