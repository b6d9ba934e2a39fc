"""What an activity raises, on its way to the workflow that called it."""

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DefaultFailureConverter, DefaultPayloadConverter
from temporalio.exceptions import ApplicationError

from psrl.activities.boundary import boundary
from psrl.schemas.errors import DataError


async def test_a_mistake_quoted_with_what_cannot_be_sent_arrives_as_that_mistake() -> None:
    @boundary
    async def activity() -> None:
        raise DataError("row 3 holds '\ud800'")

    with pytest.raises(ApplicationError) as caught:
        await activity()
    sent = Failure()
    DefaultFailureConverter().to_failure(caught.value, DefaultPayloadConverter(), sent)
    assert sent.message == r"row 3 holds '\ud800'"
    assert (sent.application_failure_info.type, sent.application_failure_info.non_retryable) == ("DataError", True)
