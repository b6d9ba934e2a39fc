"""A stack described by the environment, and the one table of variables."""

import ast
import re
from pathlib import Path

import pytest

from psrl.schemas import environment as env
from psrl.schemas.errors import UserError
from psrl.schemas.stack import Stack, load_stack
from psrl.workers.rollout.engine import CPU_ENVIRONMENT, ENVIRONMENT
from psrl.workers.stack.parts import TEMPORAL_DEFAULTS, WORKER_DEFAULTS
from psrl.workers.stack.up import down

ROOT = Path(__file__).parents[3]
GIVEN = {
    "PSRL_HOME": "/srv/psrl",
    "PSRL_TEMPORAL_ADDRESS": "temporal:7233",
    "PSRL_POSTGRES_URL": "postgresql://u:secret@db/psrl",
    "PSRL_COORDINATOR_ADDRESS": "coordinator:7000",
    "PSRL_INSTANCES": "2",
}


def test_the_environment_describes_a_whole_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    more = {
        "PSRL_GATEWAY_ADDRESS": "gateway:7001",
        "PSRL_TEMPORAL_NAMESPACE": "rl",
        "PSRL_WEIGHTS_DIR": "/shared/w",
        "PSRL_TEMPORAL_ID": "abc",
    }
    for name, value in (GIVEN | more).items():
        monkeypatch.setenv(name, value)
    stack = load_stack(Path("/nowhere"))
    assert stack == Stack(
        home=Path("/srv/psrl"),
        temporal_address="temporal:7233",
        namespace="rl",
        postgres_url="postgresql+psycopg://u:secret@db/psrl",
        coordinator_address="coordinator:7000",
        gateway_address="gateway:7001",
        weights_dir=Path("/shared/w"),
        checkpoints_dir=Path("/srv/psrl/checkpoints"),
        instances=("rollout-0", "rollout-1"),
        temporal_id="abc",
    )


def test_without_an_address_in_the_environment_the_stack_is_read_from_its_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no stack under"):
        load_stack(tmp_path)


@pytest.mark.parametrize("name", ["PSRL_TEMPORAL_ADDRESS", "PSRL_POSTGRES_URL", "PSRL_INSTANCES"])
def test_a_variable_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(UserError, match=f"^{name} must be set too"):
        Stack.from_environment({key: value for key, value in GIVEN.items() if key != name})


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("PSRL_TEMPORAL_ADDRESS", "temporal", "PSRL_TEMPORAL_ADDRESS: 'temporal' is not allowed; allowed: HOST:PORT"),
        (
            "PSRL_POSTGRES_URL",
            "mysql://u:secret@h/d",
            "PSRL_POSTGRES_URL: its value is not allowed; allowed: postgresql",
        ),
        ("PSRL_INSTANCES", "two", "PSRL_INSTANCES: 'two' is not allowed; allowed: a number"),
    ],
)
def test_a_value_of_the_wrong_form_is_refused_naming_its_variable(name: str, value: str, told: str) -> None:
    with pytest.raises(UserError) as refused:
        Stack.from_environment(GIVEN | {name: value})
    assert str(refused.value).startswith(told)
    assert "secret" not in str(refused.value)


def test_a_stack_that_others_run_is_not_stopped_by_psrl_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSRL_TEMPORAL_ADDRESS", "temporal:7233")
    with pytest.raises(UserError, match=r"`psrl down` is for a local stack.*unset PSRL_TEMPORAL_ADDRESS"):
        down(tmp_path, print)


def test_every_variable_that_the_code_reads_is_in_the_table() -> None:
    table = {variable.name for variable in (*env.STACK, *env.PROCESSES)}
    read = {*ENVIRONMENT, *CPU_ENVIRONMENT, *WORKER_DEFAULTS, *TEMPORAL_DEFAULTS, "TORCHDYNAMO_DISABLE"}
    for folder in ("schemas", "workflows", "activities", "workers"):
        for file in (ROOT / folder).rglob("*.py"):
            source = file.read_text()
            # A name that ends in _ is the beginning of names that we give to supervisord, and nobody else.
            read |= set(re.findall(r"\bPSRL_[A-Z_]*[A-Z]\b", source))
            read |= _looked_up(ast.parse(source))
    assert read - table == set()
    assert table - read == set()


def _looked_up(tree: ast.AST) -> set[str]:
    """Names in `environ.get("NAME")`, `environment.get("NAME")`, `environ["NAME"]` and the like."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            owner, key = node.func.value, node.args[0]
        elif isinstance(node, ast.Subscript):
            owner, key = node.value, node.slice
        else:
            continue
        name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        if name in {"environ", "environment", "inherited"} and isinstance(key, ast.Constant):
            found.add(str(key.value))
    return found
