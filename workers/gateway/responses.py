"""OpenAI's newer dialect, `/v1/responses`, through vLLM's own models and conversion.

A request brings its whole history: what only a server with a memory of its own could do is refused.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from .chat import Completion
from .errors import ApiError, bad_request, invalid
from .protocol import ChatRequest, unsupported
from .stream import Events, data

ERRORS_OF_CONVERSION = (ValueError, TypeError, KeyError, NotImplementedError)
"""What vLLM raises on what it does not take."""


class Exchange:
    """One request and what is answered to it."""

    def __init__(self, body: dict[str, Any]) -> None:
        """Raises `ApiError`."""
        from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

        _require_served(body)
        try:
            self._asked = ResponsesRequest.model_validate(body)
        except ValidationError as error:
            raise invalid(error) from error
        self.stream = bool(self._asked.stream)

    def chat_request(self) -> ChatRequest:
        """Raises `ApiError`."""
        from vllm.entrypoints.openai.responses.utils import construct_input_messages, construct_tool_dicts

        asked = self._asked
        try:
            messages = construct_input_messages(request_instructions=asked.instructions, request_input=asked.input)
            tools = construct_tool_dicts(asked.tools, asked.tool_choice)
        except ERRORS_OF_CONVERSION as error:
            raise bad_request(str(error), "input") from error
        return ChatRequest.model_validate(
            {
                "model": asked.model,
                "messages": messages,
                "tools": tools,
                "tool_choice": asked.tool_choice
                if isinstance(asked.tool_choice, str)
                else asked.tool_choice.model_dump(),
                "max_tokens": asked.max_output_tokens,
                "temperature": asked.temperature,
                "top_p": asked.top_p,
            }
        )

    def response(self, done: Completion) -> dict[str, Any]:
        choice = done.body["choices"][0]
        cut = choice["finish_reason"] == "length"
        return self._response(done, self._items(done), "incomplete" if cut else "completed")

    async def events(self, done: Completion) -> Events:
        for number, event in enumerate(self._events(done)):
            yield f"event: {event['type']}\n" + data({**event, "sequence_number": number})

    def _events(self, done: Completion) -> Iterator[dict[str, Any]]:
        from vllm.entrypoints.generate.base.protocol import DeltaMessage
        from vllm.entrypoints.openai.responses.streaming_events import SimpleStreamingEventProcessor, split_delta

        begun = self._response(done, [], "in_progress")
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        processor = SimpleStreamingEventProcessor(tools=self._asked.tools)
        for delta in split_delta(DeltaMessage.model_validate(_delta(done))):
            state, call = processor.resolve_target_state(delta)
            if processor.needs_transition(state, call):
                yield from (event.model_dump(mode="json") for event in processor.close_current())
                yield from (event.model_dump(mode="json") for event in processor.open(state, call))
            yield from (event.model_dump(mode="json") for event in processor.emit_delta(delta, None, lambda _: []))
        yield from (event.model_dump(mode="json") for event in processor.close_current())
        ended = self.response(done)
        ended["output"] = [item.model_dump(mode="json") for item in processor.output_items]
        yield {"type": f"response.{ended['status']}", "response": ended}

    def _items(self, done: Completion) -> list[Any]:
        from vllm.entrypoints.generate.base.protocol import FunctionCall
        from vllm.entrypoints.openai.responses.utils import build_response_output_items

        message = done.body["choices"][0]["message"]
        calls = [FunctionCall(id=call["id"], **call["function"]) for call in message.get("tool_calls") or []]
        return list(
            build_response_output_items(
                message.get("reasoning"), message.get("content"), calls, tools=self._asked.tools
            )
        )

    def _response(self, done: Completion, items: list[Any], status: str) -> dict[str, Any]:
        from vllm.entrypoints.openai.responses.protocol import ResponsesResponse
        from vllm.sampling_params import SamplingParams

        sampling = SamplingParams(max_tokens=done.body["usage"]["completion_tokens"] or 1)
        response = ResponsesResponse.from_request(
            self._asked,
            sampling,
            model_name=done.body["model"],
            created_time=done.body["created"],
            output=items,
            status=status,
        )
        usage = done.body["usage"]
        told = dict(response.model_dump(mode="json", by_alias=True))
        told["id"] = done.body["id"].replace("chatcmpl", "resp", 1)
        told["usage"] = (
            None
            if status == "in_progress"
            else {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            }
        )
        return told


def told(error: ApiError) -> str:
    event = {"type": "error", "sequence_number": 0, "code": error.code, "message": error.message, "param": error.param}
    return "event: error\n" + data(event)


def _require_served(body: dict[str, Any]) -> None:
    for name in ("previous_response_id", "conversation", "background", "prompt"):
        if body.get(name):
            raise unsupported(name, body[name], "none: each request brings its whole history")


def _delta(done: Completion) -> dict[str, Any]:
    message = done.body["choices"][0]["message"]
    calls = [{"index": number, **call} for number, call in enumerate(message.get("tool_calls") or [])]
    return {"reasoning": message.get("reasoning"), "content": message.get("content") or None, "tool_calls": calls}
