"""What an activity raises, on its way to the workflow that called it."""

import asyncio

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DefaultFailureConverter, DefaultPayloadConverter
from temporalio.exceptions import ApplicationError

from psrl.activities.boundary import boundary
from psrl.schemas.errors import DataError
from psrl.schemas.text import MAX_REASON


async def sent(error: BaseException) -> Failure:
    """What of it goes over the wire."""

    @boundary
    async def activity() -> None:
        raise error

    with pytest.raises(ApplicationError) as caught:
        await activity()
    failure = Failure()
    DefaultFailureConverter().to_failure(caught.value, DefaultPayloadConverter(), failure)
    return failure


async def test_a_mistake_quoted_with_what_cannot_be_sent_arrives_as_that_mistake() -> None:
    failure = await sent(DataError("row 3 holds '\ud800'"))
    assert failure.message == r"row 3 holds '\ud800'"
    assert (failure.application_failure_info.type, failure.application_failure_info.non_retryable) == (
        "DataError",
        True,
    )


def chained(length: int) -> Exception:
    error: Exception = ValueError("the first cause\n" + "x" * 3_000_000)
    for layer in range(length + 1):
        outer = RuntimeError(f"layer {layer}: " + "y" * 1000)
        outer.__cause__, error = error, outer
    return error


async def test_a_failure_of_any_size_stays_small_and_tells_its_causes() -> None:
    """Field report 206: the server answers one that is too large with "Failure exceeds size limit", and nobody learns
    more."""
    failure = await sent(chained(2))
    assert (failure.application_failure_info.type, failure.application_failure_info.non_retryable) == (
        "RuntimeError",
        False,
    )
    assert failure.message.splitlines()[1].startswith("because of RuntimeError: layer 1")
    assert failure.message.splitlines()[-1] == "because of ValueError: the first cause"
    assert not failure.HasField("cause")
    assert (await sent(chained(60))).ByteSize() < 20_000
    assert len((await sent(ValueError("\0" * 3_000_000))).message) <= MAX_REASON


async def test_the_stack_of_a_deep_recursion_is_cut_to_its_innermost_frames() -> None:
    @boundary
    async def activity() -> None:
        deeper(True)

    with pytest.raises(ApplicationError) as caught:
        await activity()
    failure = Failure()
    DefaultFailureConverter().to_failure(caught.value, DefaultPayloadConverter(), failure)
    assert failure.stack_trace.count("in other_way") > 10
    assert len(failure.stack_trace) < 20_000


def deeper(one: bool) -> None:
    other_way(one)


def other_way(one: bool) -> None:
    deeper(not one)


async def test_cancellation_passes_untouched() -> None:
    @boundary
    async def activity() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await activity()
