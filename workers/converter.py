"""Between our messages and Temporal's payloads: pydantic's JSON, one converter for the whole process.

The SDK makes a converter for every workflow and two more for every task of one, and each of them would prepare the
types of our messages anew: that is a tenth of the orchestrator's processor time. A converter holds nothing else.
"""

from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter


class SharedConverter(PydanticPayloadConverter):
    """Every call of the class gives the same instance; all threads may use it."""

    _only: "SharedConverter | None" = None

    def __new__(cls) -> "SharedConverter":
        if cls._only is None:
            only = super().__new__(cls)
            PydanticPayloadConverter.__init__(only)
            cls._only = only
        return cls._only

    def __init__(self) -> None:
        """Made in `__new__`, once."""


data_converter = DataConverter(payload_converter_class=SharedConverter)
