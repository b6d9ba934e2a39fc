"""The two other dialects, by their stock clients. Converting them loads vLLM."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from tests.support.gateway_parts import NAME, RUN, TOKEN, Parts, gateway_parts

BASE = f"http://gateway/sessions/{NAME}"
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
async def parts(tiny_model_dir: Path) -> AsyncIterator[Parts]:
    def answers(number: int) -> str:
        return CALL if number == 0 else f"answer {number}"

    made = gateway_parts(tiny_model_dir, answers, tool_parser="hermes")
    yield made
    made.gateway.models.close()


@pytest.fixture
def http(parts: Parts) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(parts.gateway.app()), base_url="http://gateway", timeout=250)


async def test_anthropics_client_calls_a_tool_and_goes_on_in_the_same_branch(parts: Parts) -> None:
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(parts.gateway.app()), timeout=250)
    schema: Any = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools: Any = [{"name": "add", "input_schema": schema}]
    messages: list[Any] = [{"role": "user", "content": "Count."}]
    shared: Any = {"model": RUN, "max_tokens": 200, "tools": tools, "system": "Be brief."}
    async with anthropic.AsyncAnthropic(base_url=BASE, api_key=TOKEN, http_client=http, max_retries=0) as client:
        first = await client.messages.create(messages=messages, **shared)
        call = first.content[0]
        assert isinstance(call, anthropic.types.ToolUseBlock)
        messages += [
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "2"}]},
        ]
        async with client.messages.stream(messages=messages, **shared) as stream:
            second = await stream.get_final_message()
        with pytest.raises(anthropic.BadRequestError) as refused:
            await client.messages.create(messages=messages, **{**shared, "stop_sequences": ["x"]})
    assert (first.stop_reason, call.name, call.input) == ("tool_use", "add", {"a": 1})
    assert [block.text for block in second.content if block.type == "text"] == ["answer 1"]
    assert (second.stop_reason, second.usage.output_tokens) == ("end_turn", 9)
    assert list(parts.sessions.rows) == [(0, 0), (0, 1)]
    assert "stop" in str(refused.value)


async def test_responses_call_a_tool_and_go_on_in_the_same_branch(http: httpx.AsyncClient, parts: Parts) -> None:
    schema: Any = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools: Any = [{"type": "function", "name": "add", "parameters": schema, "strict": False}]
    said: list[Any] = [{"role": "user", "content": "Count."}]
    shared: Any = {"model": RUN, "tools": tools, "instructions": "Be brief."}
    async with openai.AsyncOpenAI(base_url=f"{BASE}/v1", api_key=TOKEN, http_client=http, max_retries=0) as client:
        first = await client.responses.create(input=said, **shared)
        call: Any = first.output[0]
        said += [
            *(item.model_dump(exclude_none=True) for item in first.output),
            {"type": "function_call_output", "call_id": call.call_id, "output": "2"},
        ]
        events = [event async for event in await client.responses.create(input=said, stream=True, **shared)]
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(input=said, previous_response_id="resp_1", **shared)
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "add", {"a": 1})
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert "response.output_text.delta" in kinds
    last: Any = events[-1]
    assert (last.type, last.response.output_text) == ("response.completed", "answer 1")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert list(parts.sessions.rows) == [(0, 0), (0, 1)]
    assert refused.value.param == "previous_response_id"
