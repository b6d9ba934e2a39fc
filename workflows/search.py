"""Search attributes the workflows set. They must be registered first (`schemas.temporal`): an unknown one fails the
workflow task for ever."""

from temporalio.common import SearchAttributeKey

RUN = SearchAttributeKey.for_keyword("RlRun")
STEP = SearchAttributeKey.for_int("RlStep")
GROUP = SearchAttributeKey.for_keyword("RlGroup")
STATE = SearchAttributeKey.for_keyword("RlState")
VERSION = SearchAttributeKey.for_int("RlPolicyVersion")
REWARD = SearchAttributeKey.for_float("RlReward")
