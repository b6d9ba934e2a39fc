"""Anthropic's dialect, through vLLM's own models and conversion."""

from collections.abc import AsyncIterator
from typing import Any, cast

from pydantic import ValidationError

from .chat import Completion, chunks
from .errors import ApiError, bad_request, invalid
from .protocol import ChatRequest
from .stream import Events, data

ERRORS_OF_CONVERSION = (ValueError, TypeError, KeyError)
"""What vLLM raises on what it does not take."""


def chat_request(body: dict[str, Any]) -> ChatRequest:
    """Raises `ApiError`."""
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    try:
        asked = AnthropicMessagesRequest.model_validate(body)
        converted = AnthropicServingMessages.to_chat_completion_request(asked, merge_inline_system=True)
    except ValidationError as error:
        raise invalid(error) from error
    except ERRORS_OF_CONVERSION as error:
        raise bad_request(str(error)) from error
    return ChatRequest.model_validate(converted.model_dump(mode="json", exclude_none=True, exclude_unset=True))


def message(done: Completion) -> dict[str, Any]:
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse

    response = ChatCompletionResponse.model_validate(done.body)
    converted = AnthropicServingMessages.messages_full_converter(cast(Any, None), response)
    return dict(converted.model_dump(mode="json", exclude_none=True))


async def events(done: Completion) -> Events:
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    async for event in AnthropicServingMessages.message_stream_converter(cast(Any, None), _stream(done)):
        yield event


async def _stream(done: Completion) -> AsyncIterator[str]:
    usage = done.body["usage"]
    for chunk in chunks(done.body, with_usage=True):
        yield data({**chunk, "usage": usage})
    yield "data: [DONE]\n\n"


def told(error: ApiError) -> str:
    return "event: error\n" + data(error.anthropic())
