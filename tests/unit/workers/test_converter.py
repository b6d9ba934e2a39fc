"""Between our messages and Temporal's payloads."""

from temporalio.contrib.pydantic import PydanticPayloadConverter

from psrl.schemas.ids import GroupId
from psrl.schemas.messages.run import GroupOutcome, GroupReport
from psrl.workers.converter import SharedConverter, data_converter

REPORT = GroupReport(group_id=GroupId("000001"), outcome=GroupOutcome.COMPLETE, reward_mean=0.5)


def test_every_workflow_and_task_gets_the_same_converter() -> None:
    assert SharedConverter() is SharedConverter() is data_converter.payload_converter_class()


def test_messages_read_as_those_of_pydantics_own_converter() -> None:
    ours, plain = SharedConverter(), PydanticPayloadConverter()
    payloads = ours.to_payloads([REPORT, None])
    assert payloads == plain.to_payloads([REPORT, None])
    assert plain.from_payloads(payloads, [GroupReport, type(None)]) == [REPORT, None]
    assert ours.from_payloads(payloads, [GroupReport, type(None)]) == [REPORT, None]
