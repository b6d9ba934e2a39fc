"""`llm_judge`: a model behind an OpenAI-compatible URL says what an answer is worth.

Promise: an answer of the model's without a verdict, and a model that cannot be asked, are failures, never 0.0 (L10).
"""

import importlib
import math
import os
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from jinja2 import StrictUndefined, TemplateError, meta
from jinja2.sandbox import SandboxedEnvironment

from ....schemas.config.built_in_rewards import LlmJudgeOptions
from ....schemas.errors import RewardLoadError, UserCodeFailed
from ....schemas.messages.rewards import RewardSample
from ....schemas.text import shown
from .contract import BuiltIn

if TYPE_CHECKING:
    from openai import AsyncOpenAI

NO_KEY = "none"
"""The client insists on one; servers that want none take any."""
KNOWN = ("data_source", "extra", "ground_truth", "messages", "prompt", "response", "turns")
WORDS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}


class LlmJudge(BuiltIn):
    def __init__(self, options: LlmJudgeOptions) -> None:
        importlib.import_module("openai")  # here, since it takes a second, and later calls of others would wait
        self._options = options
        self._verdict = re.compile(options.verdict, re.IGNORECASE)
        environment = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
        try:
            self._prompt = environment.from_string(options.prompt)
            named = meta.find_undeclared_variables(environment.parse(options.prompt))
        except TemplateError as error:
            raise RewardLoadError(f"prompt={shown(options.prompt)}: {error}") from error
        if unknown := sorted(named - {*KNOWN}):
            raise RewardLoadError(f"prompt names {', '.join(unknown)}; allowed: {', '.join(KNOWN)}")
        self._certificates = ssl.create_default_context()

    def admit(self) -> None:
        self._key()

    async def __call__(self, sample: RewardSample) -> float:
        options = self._options
        question = self._prompt.render(
            data_source=sample.data_source,
            extra=sample.extra,
            ground_truth=sample.ground_truth,
            messages=sample.messages,
            prompt=sample.prompt_text,
            response=sample.response_text,
            turns=sample.turns,
        )
        system: list[Any] = [{"role": "system", "content": options.system}] if options.system else []
        async with self._client() as client:
            found = await client.chat.completions.create(
                model=options.model,
                messages=[*system, {"role": "user", "content": question}],
                max_tokens=options.max_tokens,
                temperature=options.temperature,
                extra_body=options.extra_body,
            )
        choices = found.choices or []
        return self._read(choices[0].message.content or "" if choices else "")

    def _read(self, answer: str) -> float:
        """Raises `UserCodeFailed`."""
        found = list(self._verdict.finditer(answer))
        said = (found[-1]["score"] or "").strip() if found else ""
        if not said:
            raise UserCodeFailed(f"the judge gave no verdict: its answer ends {answer[-60:]!r}")
        try:
            score = WORDS[said.lower()] if said.lower() in WORDS else float(said)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise UserCodeFailed(f"the judge's verdict is {shown(said)}; allowed: a number, true, yes, false or no")
        return score

    @asynccontextmanager
    async def _client(self) -> "AsyncIterator[AsyncOpenAI]":
        """One for each call, which costs less than to keep one for each event loop and to end it in time. It repeats
        what may succeed later, and waits as Retry-After says."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        client = AsyncOpenAI(
            base_url=self._options.base_url,
            api_key=self._key(),
            timeout=self._options.request_s,
            max_retries=self._options.max_retries,
            http_client=DefaultAsyncHttpxClient(verify=self._certificates),
        )
        async with client:
            yield client

    def _key(self) -> str:
        """Raises `RewardLoadError`."""
        variable = self._options.api_key_env
        if not variable:
            return NO_KEY
        if key := os.environ.get(variable):
            return key
        raise RewardLoadError(
            f"api_key_env={variable!r}, but the cpu workers have no such variable; allowed: one that is set where "
            "`psrl up` is called"
        )
