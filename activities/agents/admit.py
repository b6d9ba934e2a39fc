"""A run's agent at admission: what can be known to be wrong with it is refused here (L13)."""

import os
import shutil
from pathlib import Path
from typing import Any, cast

from ...schemas.config import RunConfig
from ...schemas.config.agentic import AgenticSection, AgentLoop
from ...schemas.errors import ConfigError, UserCodeFailed
from ..capture.message import Reader
from ..capture.model import Tokenizer, chat_tokenizer
from ..capture.render import Template
from ..capture.stops import stop_ids
from ..data.tokenizer import load_tokenizer
from ..user_code.load import UserFunction
from ..user_code.prepared import Recipe
from ..user_code.process import examine
from .agent import COMMAND, FUNCTION, recipe


class Parsers:
    """Loaded in a process of its own, since vLLM comes along; nothing is called."""

    about = None
    at_once: int | None = None
    is_async = False

    def __init__(self, model_path: str, trust_remote_code: bool, agentic: AgenticSection) -> None:
        """Raises `ModelError`."""
        tokenizer = cast(Tokenizer, load_tokenizer(model_path, trust_remote_code))
        Reader(tokenizer, stop_ids(Path(model_path), tokenizer), agentic.tool_parser, agentic.reasoning_parser)
        self.function: UserFunction = Reader

    def ask(self, argument: Any) -> Any:
        raise NotImplementedError

    def read(self, argument: Any, returned: Any) -> Any:
        raise NotImplementedError


def check_agents(config: RunConfig, gateway: str | None) -> None:
    """`gateway`: its address, empty where there is none; null leaves that unchecked. Raises a `UserError`."""
    agentic = config.psrl.agentic_rl
    if agentic.agent_loop is not AgentLoop.SESSION:
        return
    if gateway == "":
        raise ConfigError(
            "psrl.agentic_rl.agent_loop=session, but this stack has no gateway for agents to talk to; allowed: a stack "
            "with the part `gateway`, or PSRL_GATEWAY_ADDRESS"
        )
    tokenizer = chat_tokenizer(config)
    Template.open(tokenizer, stop_ids(Path(config.model.path), tokenizer), agentic.thinking_template)
    if agentic.tool_parser or agentic.reasoning_parser:
        _examined(
            Recipe(Parsers, (config.model.path, config.model.trust_remote_code, agentic)), "psrl.agentic_rl.tool_parser"
        )
    if agentic.agent:
        _examined(recipe(agentic), f"{FUNCTION}={agentic.agent!r}")
    else:
        _require_program(agentic.agent_command[0])


def _examined(what: Recipe, named: str) -> None:
    try:
        examine(what)
    except UserCodeFailed as failure:
        raise ConfigError(f"{named}: importing it failed: {failure}") from failure


def _require_program(program: str) -> None:
    """It is started in a directory of its own, where a relative path leads nowhere."""
    if os.sep in program and not os.path.isabs(program):
        raise ConfigError(f"{COMMAND}[0]={program!r} is a relative path; allowed: an absolute one, or a name on PATH")
    if shutil.which(program) is None:
        raise ConfigError(f"{COMMAND}[0]={program!r} is no program here; allowed: an absolute path, or a name on PATH")
