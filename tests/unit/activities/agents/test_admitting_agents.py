"""What is refused of a run's agent before any part works for it."""

import sys
from pathlib import Path
from typing import Any

import pytest

from psrl.activities.agents.admit import check_agents
from psrl.schemas.config import parse_config
from psrl.schemas.errors import ConfigError, ModelError, UserError
from tests.support.runs import config_values

AGENT = {"agent": "tests.support.agents:nothing"}
GATEWAY = "127.0.0.1:1"


def check(model: Path, gateway: str | None = GATEWAY, **agentic: Any) -> None:
    chosen = {"agent_loop": "session", **agentic}
    check_agents(parse_config(config_values(model, Path("t.jsonl"), psrl={"agentic_rl": chosen})), gateway)


@pytest.mark.parametrize(
    "agent", [AGENT, {"agent_command": ["python3", "-c", ""]}, {"agent_command": [sys.executable, "-c", ""]}]
)
def test_an_agent_that_is_there_is_admitted(tiny_model_dir: Path, agent: dict[str, Any]) -> None:
    check(tiny_model_dir, **agent)
    check(tiny_model_dir, None, **agent)


def test_agents_need_a_gateway(tiny_model_dir: Path) -> None:
    with pytest.raises(ConfigError, match="this stack has no gateway for agents to talk to"):
        check(tiny_model_dir, "", **AGENT)


@pytest.mark.parametrize(
    ("agent", "told"),
    [
        ({"agent": "tests.support.agents:notihng"}, "has no 'notihng' .did you mean 'nothing'"),
        ({"agent": "no.such.module:agent"}, "importing no.such.module failed"),
        ({"agent": "nothing"}, "allowed: package.module:function"),
        ({"agent": "psrl.schemas.seeds:group_seed"}, "allowed: a function of one argument, the task"),
        ({"agent_command": ["no-such-program"]}, "is no program here; allowed: an absolute path, or a name on PATH"),
        ({"agent_command": ["./agent.sh"]}, "is a relative path; allowed: an absolute one"),
    ],
)
def test_an_agent_that_cannot_be_run_is_refused_by_its_key(
    tiny_model_dir: Path, agent: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as refusal:
        check(tiny_model_dir, **agent)
    assert "psrl.agentic_rl.agent" in str(refusal.value)


def test_a_parser_that_vllm_does_not_have_is_refused(tiny_model_dir: Path) -> None:
    with pytest.raises(UserError, match=r"tool_parser='hermse' is none of vLLM's .did you mean 'hermes'"):
        check(tiny_model_dir, **AGENT, tool_parser="hermse")


def model_without_conversations(tiny_model_dir: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in tiny_model_dir.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    return folder


def test_a_template_that_cannot_render_a_conversation_is_refused(tmp_path: Path, tiny_model_dir: Path) -> None:
    folder = model_without_conversations(tiny_model_dir, tmp_path / "model")
    with pytest.raises(ModelError, match="the chat template of model"):
        check(folder, **AGENT)


def test_the_template_that_is_looked_at_is_the_one_that_the_run_chose(tmp_path: Path, tiny_model_dir: Path) -> None:
    folder = model_without_conversations(tiny_model_dir, tmp_path / "model")
    values = config_values(folder, Path("t.jsonl"), psrl={"agentic_rl": {"agent_loop": "session", **AGENT}})
    values["data"] |= {"chat_template": str(tiny_model_dir / "chat_template.jinja")}
    check_agents(parse_config(values), GATEWAY)
