"""Rewards that come with PSRL: their names, and what `kwargs` each takes (docs/rewards.md)."""

import re
from enum import StrEnum
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator

from .base import Section, told
from .sandbox import SandboxLimits

BOXED_VERDICT = r"\\boxed\{\s*(?P<score>true|false)\s*\}"
JUDGE_PROMPT = """\
You are given a task, a reference answer and a response. Say whether the response arrives at the reference answer. \
Wording and form do not matter, the result does.

[Task]
{{ prompt }}

[Reference answer]
{{ ground_truth }}

[Response]
{{ response }}

Explain in a few sentences, then end with \\boxed{True} or \\boxed{False}.\
"""


class BuiltInReward(StrEnum):
    """Named in place of an import path."""

    CODE_TESTS = "code_tests"
    """Runs the tests of the data's row against the code in the answer, in a sandbox."""
    LLM_JUDGE = "llm_judge"
    """Asks a model behind an OpenAI-compatible URL."""
    OVERLONG = "overlong"
    """From 0 down to `-factor` for an answer that comes near the greatest length."""
    OUTCOME = "outcome"
    """What the episode's environment or agent itself says, to be weighed against others."""


class TestForm(StrEnum):
    """How a row says what its tests are."""

    __test__ = False

    ASSERTS = "asserts"
    """Python that raises when the answer is wrong: one text, or a list of them. Each is a test; so is each statement of
    a text that consists of `assert` alone. They see the names that the answer defines."""
    STDIN = "stdin"
    """What the answer, a whole program, is given on standard input, and what it must then say on standard output but
    for space at the ends of lines: a list of `{input, output}`, or lists `{inputs, outputs}`."""
    PYTEST = "pytest"
    """A file of pytest's, which imports from `solution`."""


class CodeTestsOptions(Section):
    form: TestForm
    """How a row says what its tests are."""
    column: str = ""
    """Column of the data that has the tests; empty for the ground truth. JSON may be text."""
    partial: bool = False
    """The score is the share of tests that pass; else 1 where all do and 0 where one does not."""
    fenced: bool = True
    """The code is the last fenced block that says Python or nothing; an answer without one scores 0. Else an answer
    without one is code as a whole."""
    test_s: float = Field(default=5, gt=0)
    """Time limit of one test."""
    limits: SandboxLimits = SandboxLimits(wall_s=20, cpu_s=20)
    """Of all tests of an answer together; tests that did not come to their turn have not passed."""
    must_be_confined: bool = False
    """Refuse the run where the machine allows no walls around a program (a container without the right to make
    namespaces, as a rule), in which case only limits hold, and the network can be reached."""


class LlmJudgeOptions(Section):
    base_url: str
    """Up to `/v1`, as OpenAI's clients have it."""
    model: str = Field(min_length=1)
    """Its name at that URL."""
    api_key_env: str = ""
    """Environment variable of the cpu workers that holds the key; empty for a server that wants none. The key itself is
    never written into a configuration, which is stored and shown."""
    system: str = ""
    """The system message; empty for none."""
    prompt: str = Field(default=JUDGE_PROMPT, min_length=1)
    """The question, as a Jinja template of `prompt`, `response`, `ground_truth`, `data_source`, `messages`, `extra` and
    `turns`, each with `environment` and `policy`. The default asks whether the response arrives at the ground truth."""
    verdict: str = BOXED_VERDICT
    """A regular expression, whatever the case, whose last match in the model's answer holds the verdict as group
    `score`: a number, or true, yes, false, no. Without a match there is no verdict, which is a failure, not 0."""
    max_tokens: int = Field(default=1024, ge=1)
    temperature: float = Field(default=0, ge=0)
    extra_body: dict[str, Any] = {}
    """More of the request, such as `chat_template_kwargs` of vLLM."""
    max_retries: int = Field(default=4, ge=0)
    """After 408, 409, 429, 5xx and lost connections, with growing pauses, or those that Retry-After asks for."""
    request_s: float = Field(default=20, gt=0)
    """Time limit of one request."""

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        if "@" in value or "?" in value:  # not shown: it may hold a key
            raise ValueError("allowed: a URL without a key in it; api_key_env names the variable that holds one")
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{value!r} is no such URL; allowed: http://host:port/v1 or https://host/v1")
        return value

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if value and not re.fullmatch(r"[A-Za-z_]\w*", value):
            raise ValueError("that is no name; allowed: the name of an environment variable, not the key itself")
        return value

    @field_validator("verdict")
    @classmethod
    def _has_a_score(cls, value: str) -> str:
        try:
            found = re.compile(value)
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from None
        if "score" not in found.groupindex:
            raise ValueError(f"{value!r} has no such group; allowed: an expression with a group (?P<score>...)")
        return value


class OverlongOptions(Section):
    max_response_length: int = Field(ge=1)
    """Tokens of the longest answer; as a rule `${data.max_response_length}`."""
    buffer_length: int = Field(ge=1)
    """Tokens before that, over which the penalty grows."""
    factor: float = Field(default=1, gt=0)
    """The penalty of the longest answer."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.buffer_length > self.max_response_length:
            raise ValueError(
                f"buffer_length={self.buffer_length} is longer than max_response_length={self.max_response_length}"
            )
        return self


class OutcomeOptions(Section):
    """None."""


OPTIONS: dict[str, type[Section]] = {
    BuiltInReward.CODE_TESTS.value: CodeTestsOptions,
    BuiltInReward.LLM_JUDGE.value: LlmJudgeOptions,
    BuiltInReward.OVERLONG.value: OverlongOptions,
    BuiltInReward.OUTCOME.value: OutcomeOptions,
}


def faults(key: str, function: str, kwargs: dict[str, Any], timeout_s: float) -> list[str]:
    """What is wrong with the arguments of a reward that is built in, one line each. `key`: of the reward."""
    try:
        options = OPTIONS[function].model_validate(kwargs)
    except ValidationError as error:
        return [line for item in error.errors() for line in told(item, f"{key}.kwargs")]
    return [
        f"{key}.kwargs.{name}={value:g} is more than half of {key}.timeout_s={timeout_s:g}, so that a call would run "
        f"out of time before it has its result; allowed: at most {timeout_s / 2:g}"
        for name, value in _times(options)
        if value > timeout_s / 2
    ]


def _times(options: Section) -> list[tuple[str, float]]:
    if isinstance(options, CodeTestsOptions):
        return [("limits.wall_s", options.limits.wall_s)]
    return [("request_s", options.request_s)] if isinstance(options, LlmJudgeOptions) else []
