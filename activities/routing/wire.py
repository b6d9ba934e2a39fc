"""Between our pydantic messages and protobuf. Field names are the same on both sides (a test compares them)."""

from typing import TypeVar

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message as Wire

from ...schemas.messages.base import Message

WireType = TypeVar("WireType", bound=Wire)
MessageType = TypeVar("MessageType", bound=Message)


def encode(message: Message, kind: type[WireType]) -> WireType:
    return kind(**message.model_dump(mode="json"))


def decode(wire: Wire, kind: type[MessageType]) -> MessageType:
    """Raises pydantic's `ValidationError` for a value the message does not allow."""
    values = MessageToDict(wire, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return kind.model_validate(values)
