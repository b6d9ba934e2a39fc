"""Tools as the policy sees them: their schemas, what they answer, and what they answer when something is wrong."""

import asyncio
import builtins
import sys
from typing import Any

import pytest

from psrl.activities.environments.environment import Action, Step, Task, ToolCall
from psrl.activities.environments.tools.environment import ToolEnvironment, tool_environment
from psrl.activities.environments.tools.functions import PythonTool
from psrl.activities.environments.tools.tool import MARK, shortened
from psrl.schemas.config.agentic import AgenticSection, McpServer, TruncateSide
from psrl.schemas.errors import EnvironmentLoadError

TASK = Task(prompt_text="", messages=None, data_source="", ground_truth=None, extra={}, seed=0)
SERVER = McpServer(command=sys.executable, args=("-m", "tests.support.mcp_server"))


def section(*tools: str, **keys: Any) -> AgenticSection:
    paths = tuple(f"tests.support.tools:{name}" for name in tools)
    return AgenticSection(environment="tools", tool_parser="hermes", tools=paths, **keys)


async def opened(*tools: str, **keys: Any) -> ToolEnvironment:
    environment = tool_environment(section(*tools, **keys))
    await environment.reset(TASK)
    return environment


async def said(environment: ToolEnvironment, name: str, arguments: Any) -> str:
    step = await environment.step(Action(0, "", (ToolCall("c1", name, arguments),)))
    (message,) = step.messages
    assert (message["role"], message["name"], message["tool_call_id"]) == ("tool", name, "c1")
    return str(message["content"])


def parameters(name: str) -> dict[str, Any]:
    parameters: dict[str, Any] = PythonTool(f"tests.support.tools:{name}").schema["function"]["parameters"]
    return parameters


def test_types_defaults_and_docstring_become_a_schema() -> None:
    assert PythonTool("tests.support.tools:add").schema == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "the first"},
                    "b": {"type": "integer", "description": "the second", "default": 1},
                },
                "required": ["a"],
            },
        },
    }


def test_a_description_may_have_several_lines_and_arguments_sphinx_s_form() -> None:
    tool = PythonTool("tests.support.tools:look_up")
    assert tool.schema["function"]["description"] == "Looks a word up, in a dictionary."
    assert parameters("look_up")["properties"]["word"]["description"] == "what to look up"
    assert parameters("look_up")["properties"]["language"]["enum"] == ["en", "no"]


def test_models_and_lists_have_a_schema_too() -> None:
    assert parameters("distance")["$defs"]["Point"]["required"] == ["x"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("silent", "has no docstring"),
        ("untyped", "does not say of which type 'a' is"),
        ("unnamed", r"takes \*numbers: int; allowed: arguments that have names"),
        ("odd", "without a form in JSON"),
        ("nowhere", "has no 'nowhere'"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused(name: str, told: str) -> None:
    with pytest.raises(EnvironmentLoadError, match=told):
        PythonTool(f"tests.support.tools:{name}")


async def test_tools_are_called_with_what_the_policy_wrote() -> None:
    environment = await opened("add", "look_up", "distance")
    assert await said(environment, "add", {"a": 2}) == "3"
    assert await said(environment, "add", {"a": "2", "b": 5}) == "7"
    assert await said(environment, "look_up", {"word": "elv", "language": "no"}) == '{"word": "elv", "language": "no"}'
    assert await said(environment, "distance", {"start": {"x": 1}, "ends": [{"x": 4, "y": 2}]}) == "5.0"


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("add", {"a": "two"}, "error: a: Input should be a valid integer"),
        ("add", {}, "error: a: Field required"),
        ("add", {"a": 1, "c": 2}, "error: c: Extra inputs are not permitted"),
        ("add", "a=1", "error: arguments 'a=1' are no JSON object"),
        ("ad", {}, "error: there is no tool 'ad' (did you mean 'add'?): add, fails, leaves, hangs"),
        ("fails", {"why": "not today"}, "error: RuntimeError: not today"),
        ("leaves", {}, "error: RuntimeError: SystemExit(3)"),
        ("hangs", {}, "error: no result within 0.1 s"),
    ],
)
async def test_what_goes_wrong_is_text_for_the_policy(name: str, arguments: Any, told: str) -> None:
    environment = await opened("add", "fails", "leaves", "hangs", tool_timeout_s=0.1)
    assert (await said(environment, name, arguments)).startswith(told)
    done = await environment.step(Action(1, "I give up."))
    assert done == Step(done=True, info={"tool_calls": 1, "tool_errors": 1})


@pytest.mark.parametrize(
    ("side", "kept"),
    [
        (TruncateSide.LEFT, f"01234{MARK}"),
        (TruncateSide.RIGHT, f"{MARK}56789"),
        (TruncateSide.MIDDLE, f"012{MARK}89"),
    ],
)
async def test_a_long_answer_is_cut_where_it_was_asked_to_be(side: TruncateSide, kept: str) -> None:
    assert shortened("0123456789", 5, side) == kept
    assert shortened("01234", 5, side) == "01234"
    environment = await opened("talks", max_tool_response_length=5, tool_response_truncate_side=side)
    assert await said(environment, "talks", {"length": 10}) == kept


async def test_calls_of_one_turn_are_answered_in_their_order_and_run_as_many_at_a_time_as_they_may() -> None:
    environment = await opened("add", max_parallel_calls=2)
    running = most = 0

    class Watched:
        name, repeatable = "watched", True
        schema: dict[str, Any] = {}

        async def call(self, arguments: Any) -> str:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return str(arguments["n"])

    environment._tools["watched"] = Watched()
    step = await environment.step(Action(0, "", tuple(ToolCall(str(n), "watched", {"n": n}) for n in range(5))))
    assert [message["content"] for message in step.messages] == list("01234")
    assert most == 2


async def test_one_tool_that_must_not_be_repeated_makes_the_environment_so() -> None:
    assert (await opened("add")).repeatable
    assert not (await opened("add", "once")).repeatable


def test_an_environment_without_tools_or_parser_is_refused() -> None:
    with pytest.raises(EnvironmentLoadError, match="has no tools"):
        tool_environment(section())
    with pytest.raises(EnvironmentLoadError, match="no call would be found"):
        tool_environment(section("add").model_copy(update={"tool_parser": None}))


async def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(EnvironmentLoadError, match="two tools are called 'add'"):
        await opened("add", "add")


async def test_tools_of_an_mcp_server_are_called_in_a_process_of_the_environment_s_own() -> None:
    first, second = [await opened("add", mcp_servers={"tests": SERVER}) for _ in range(2)]
    try:
        names = [schema["function"]["name"] for schema in await first.tools()]
        assert names == ["add", "count_up", "variable", "refuse"]
        assert [await said(first, "count_up", {"by": 2}) for _ in range(2)] == ["2", "4"]
        assert await said(second, "count_up", {"by": 1}) == "1"
        assert (await said(first, "refuse", {})).startswith("error: RuntimeError")
    finally:
        await first.close()
        await second.close()


async def test_an_mcp_server_gets_variables_of_its_worker_by_name_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("THE_TOKEN", "secret")
    monkeypatch.setenv("ANOTHER_TOKEN", "kept")
    program = SERVER.model_copy(update={"env": {"LEVEL": "debug"}, "env_from": ("THE_TOKEN",)})
    environment = await opened("add", mcp_servers={"tests": program})
    try:
        await environment.tools()
        found = [await said(environment, "variable", {"name": f"{name}"}) for name in ("THE_TOKEN", "LEVEL")]
        assert found == ["secret", "debug"]
        assert not await said(environment, "variable", {"name": "ANOTHER_TOKEN"})
    finally:
        await environment.close()


async def test_a_variable_that_the_worker_does_not_have_is_named() -> None:
    program = SERVER.model_copy(update={"env_from": ("NOT_SET_ANYWHERE",)})
    with pytest.raises(EnvironmentLoadError, match=r"mcp_servers\.tests\.env_from names NOT_SET_ANYWHERE, but the cpu"):
        await opened(mcp_servers={"tests": program})


async def test_an_mcp_server_that_does_not_start_is_refused_by_its_name() -> None:
    with pytest.raises(EnvironmentLoadError, match=r"mcp_servers\.broken \(/bin/false\)"):
        await opened(mcp_servers={"broken": McpServer(command="/bin/false")})


async def test_an_mcp_server_that_never_answers_ends_with_its_environment() -> None:
    environment = tool_environment(section(mcp_servers={"mute": McpServer(command="sleep", args=("600",))}))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await environment.tools()
    async with asyncio.timeout(10):
        await environment.close()


def test_mcp_servers_without_the_library_are_refused_naming_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name == "mcp":
            raise ImportError("no mcp")
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(EnvironmentLoadError, match=r"pip install 'psrl\[mcp\]'"):
        tool_environment(section(mcp_servers={"tests": SERVER}))
