"""Which agent plays, as a configuration says it."""

from pathlib import Path
from typing import Any

import pytest

from psrl.schemas.config import RunConfig, parse_config
from psrl.schemas.errors import ConfigError
from psrl.schemas.messages.run import RolloutSettings
from tests.support.runs import config_values

SESSION = {"agent_loop": "session", "agent": "mine:solve"}


def configured(agentic: dict[str, Any], **sections: Any) -> RunConfig:
    return parse_config(config_values(Path("model"), Path("train.jsonl"), psrl={"agentic_rl": agentic}, **sections))


@pytest.mark.parametrize(
    ("agentic", "told"),
    [
        ({"agent_loop": "session"}, "neither is given"),
        ({**SESSION, "agent_command": ["solve"]}, "both are given"),
        ({"agent": "mine:solve"}, "psrl.agentic_rl.agent=mine:solve has no effect"),
        ({"agent_timeout_s": 60}, "psrl.agentic_rl.agent_timeout_s=60.0 has no effect"),
        ({"retry_limit": 3}, "psrl.agentic_rl.retry_limit=3 has no effect"),
        ({"batch_agg_mode": "request"}, "psrl.agentic_rl.batch_agg_mode=request has no effect"),
    ],
)
def test_a_run_of_agents_names_one_and_others_name_none(agentic: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        configured(agentic)


def test_a_whole_conversation_must_fit_a_micro_batch() -> None:
    long = {"rollout": {"max_model_len": 5000}, "actor": {"ppo_max_token_len_per_gpu": 4999}}
    configured({}, **long)
    with pytest.raises(ConfigError, match=r"rollout.max_model_len, .* = 5000; allowed: that or more"):
        configured(SESSION, **long)


def test_an_episode_has_one_attempt_more_than_it_may_be_begun_anew() -> None:
    assert RolloutSettings.of(configured({**SESSION, "retry_limit": 2})).attempts == 3


def test_only_a_run_whose_agents_or_environments_give_a_reward_may_do_without_a_function() -> None:
    none = {"reward": {"function": ""}}
    with pytest.raises(ConfigError, match=r"reward\.function is required and empty"):
        configured({}, **none)
    for agentic in (SESSION, {"agent_loop": "multi_turn", "environment": "mine:World"}):
        assert configured(agentic, **none).reward.parts == ()
        assert configured(agentic, **none).scoring_timeout_s > 0


TOOLS = {"agent_loop": "multi_turn", "environment": "tools", "tool_parser": "hermes"}


@pytest.mark.parametrize(
    "env",
    [
        {"GITHUB_TOKEN": "of-mine"},
        {"github_api_key": "of-mine"},
        {"DB_PASSWORD": "of-mine"},
        {"DATABASE": "postgresql://me:of-mine@host/db"},
    ],
)
def test_a_secret_in_a_configuration_is_refused_without_being_shown(env: dict[str, str]) -> None:
    (name,) = env
    told = rf"mcp_servers\.one\.env: {name} looks like a secret, .*; allowed: env_from: \[{name}\]"
    with pytest.raises(ConfigError, match=told) as refusal:
        configured({**TOOLS, "mcp_servers": {"one": {"command": "server", "env": env}}})
    assert "of-mine" not in str(refusal.value)


def test_variables_that_are_no_secrets_are_allowed() -> None:
    env = {"TOKENIZERS_PARALLELISM": "false", "KEYBOARD": "us", "URL": "http://host:80/me@home"}
    configured({**TOOLS, "mcp_servers": {"one": {"command": "server", "env": env, "env_from": ["HF_TOKEN"]}}})


def test_a_value_in_the_place_of_a_name_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError, match="allowed: names of environment variables, not their values") as refusal:
        configured({**TOOLS, "mcp_servers": {"one": {"command": "server", "env_from": ["ghp-1234"]}}})
    assert "1234" not in str(refusal.value)
