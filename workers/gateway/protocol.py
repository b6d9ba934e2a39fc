"""Requests for chat completions and completions: what is taken of them, and what is refused because it cannot be done.

Parameters that are not named here are ignored, as most servers do.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, model_validator

from .errors import ApiError, bad_request
from .sampling import Wish

TOOL_CHOICES = ("auto", "none", "required")
JSON_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
UNHEEDED: Mapping[str, Any] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "min_p": 0,
    "logit_bias": {},
    "seed": None,
    "reasoning_effort": None,
}
"""They change how a turn samples, which no session allows, with the values at which they change nothing."""


class Lenient(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class StreamOptions(Lenient):
    include_usage: bool = False


class Shared(Lenient):
    """Of both protocols."""

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=10)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    n: int = 1
    stop: str | list[str] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    unheeded: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _names_unheeded(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        asked = [name for name, nothing in UNHEEDED.items() if values.get(name) not in (None, nothing)]
        if values.get("tool_choice") not in (None, "auto", "none"):
            asked.append("tool_choice")
        return {**values, "unheeded": tuple(asked)}

    def wish(self, max_tokens: int | None = None) -> Wish:
        return Wish(max_tokens or self.max_tokens, self.temperature, self.top_p, self.top_k, self.unheeded)

    @property
    def usage_in_stream(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def require_served(self) -> None:
        """Raises `ApiError`."""
        if self.n != 1:
            raise unsupported("n", self.n, "1: a conversation has one continuation")
        if self.stop:
            raise unsupported("stop", self.stop, "none: a turn ends as the policy ends it")


class Function(Lenient):
    name: str = Field(min_length=1, max_length=256)
    parameters: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _schema(self) -> Self:
        _require_schema(self.parameters or {}, "parameters")
        return self


class Tool(Lenient):
    type: str
    function: Function


class ChatRequest(Shared):
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: int | None = Field(default=None, ge=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0)
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    functions: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def require_served(self) -> None:
        super().require_served()
        for number, tool in enumerate(self.tools or []):
            _require_tool(number, tool)
        if isinstance(self.tool_choice, str) and self.tool_choice not in TOOL_CHOICES:
            raise unsupported("tool_choice", self.tool_choice, f"{', '.join(TOOL_CHOICES)}, or a tool's name")
        if self.top_logprobs:
            raise unsupported("top_logprobs", self.top_logprobs, "0: only what was sampled has a log-prob")
        if self.response_format is not None and self.response_format.get("type") != "text":
            raise unsupported("response_format", self.response_format.get("type"), "text: the policy samples freely")
        if self.modalities is not None and self.modalities != ["text"]:
            raise unsupported("modalities", self.modalities, "text")
        if self.functions:
            raise unsupported("functions", "…", "tools, which replace them")


class CompletionRequest(Shared):
    prompt: str | list[int]
    logprobs: int | None = Field(default=None, ge=0)
    echo: bool = False
    suffix: str | None = None

    def require_served(self) -> None:
        super().require_served()
        if not self.prompt:
            raise bad_request("prompt is empty", "prompt")
        if self.echo or self.suffix:
            raise unsupported("echo" if self.echo else "suffix", "…", "none")
        if self.logprobs is not None and self.logprobs > 1:
            raise unsupported("logprobs", self.logprobs, "0 or 1: only what was sampled has a log-prob")


def unsupported(param: str, value: object, allowed: str) -> ApiError:
    return bad_request(f"{param}={str(value)[:80]} cannot be served; allowed: {allowed}", param, "unsupported_value")


def _require_tool(number: int, tool: dict[str, Any]) -> None:

    try:
        Tool.model_validate(tool)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(["tools", str(number), *(str(part) for part in first["loc"])])
        raise bad_request(f"{path}: {first['msg']}", path, "invalid_tool") from error


def _require_schema(schema: Any, path: str) -> None:
    """What a JSON schema cannot be; the template takes the rest as it is."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise ValueError(f"{path} is not a JSON schema: an object is expected")
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in JSON_TYPES:
            raise ValueError(f"{path}.type={kind!r} is no type of JSON; allowed: {', '.join(JSON_TYPES)}")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise ValueError(f"{path}.properties is not an object")
    for name, inner in properties.items():
        _require_schema(inner, f"{path}.properties.{name}")
    if "items" in schema:
        _require_schema(schema["items"], f"{path}.items")
