"""Every command that talks to a server, with servers that refuse and servers that hang."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from psrl.activities.store import reach
from psrl.schemas.errors import StoreRevisionMismatch
from psrl.schemas.ids import InstanceId
from psrl.schemas.silence import why_silent
from psrl.schemas.stack import STACK_FILE, Stack
from psrl.workers.cli import listed, runs, status
from psrl.workers.cli.commands import app
from tests.support.child import free_port

TEMPORAL, POSTGRES = "Temporal at 127.0.0.1:{port}", "PostgreSQL at postgresql+psycopg://psrl:***@127.0.0.1:{port}/psrl"
COMMANDS = {
    "status": ((), POSTGRES),
    "status RUN": (("x",), TEMPORAL),
    "follow": (("x",), TEMPORAL),
    "pause": (("x",), TEMPORAL),
    "resume": (("x",), TEMPORAL),
    "stop": (("x",), TEMPORAL),
    "report": (("x",), POSTGRES),
    "audit": (("x",), POSTGRES),
    "trajectory show": (("x", "0", "0"), POSTGRES),
    "session list": (("x",), POSTGRES),
    "session show": (("x", "s"), POSTGRES),
    "session hang": (("x", "s"), POSTGRES),
    "session continue": (("x", "s"), POSTGRES),
    "session close": (("x", "s"), POSTGRES),
    "session token": (("x",), POSTGRES),
    "simulate": (("--run", "x"), POSTGRES),
    "train": (("{config}", "--no-up"), TEMPORAL),
}
SERVERLESS = {"up", "down", "calibrate", "config show", "config docs", "config import"}
INSIDES = ("tonic", "grpc", "psycopg.", "OperationalError", "RPCError", "Traceback", "connection failed", "Errno")


@pytest.fixture(params=["refuses", "hangs"])
def silent_port(request: pytest.FixtureRequest) -> Iterator[int]:
    with ExitStack() as entered:
        if request.param == "refuses":
            yield free_port()
            return
        listener = entered.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def write_stack(home: Path, port: int) -> Stack:
    stack = Stack(
        home=home,
        temporal_address=f"127.0.0.1:{port}",
        postgres_url=f"postgresql+psycopg://psrl:secret@127.0.0.1:{port}/psrl",
        coordinator_address=f"127.0.0.1:{port}",
        weights_dir=home / "weights",
        checkpoints_dir=home / "checkpoints",
        instances=(InstanceId("rollout-0"),),
    )
    (home / STACK_FILE).write_text(stack.model_dump_json())
    return stack


def test_every_command_that_needs_a_server_is_in_the_table() -> None:
    assert {name.removesuffix(" RUN") for name in COMMANDS} | SERVERLESS == set(_leaves(typer.main.get_command(app)))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_does_not_answer_is_named_with_what_to_do(
    command: str, silent_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "CONNECT_TIMEOUT_S", 0.6)
    monkeypatch.setattr(reach, "COMMAND_CONNECT_S", 1)
    write_stack(tmp_path, silent_port)
    config = tmp_path / "run.yaml"
    values = {"model": {"path": "m"}, "data": {"train_files": ["t"]}, "reward": {"function": "a:b"}}
    config.write_text(yaml.safe_dump({**values, "psrl": {"rollout_n": 4}}))
    arguments, server = COMMANDS[command]
    words = [*command.removesuffix(" RUN").split(), *(word.format(config=config) for word in arguments)]
    result = CliRunner(env={"PSRL_HOME": str(tmp_path)}).invoke(app, words)
    assert result.exit_code == (2 if command == "audit" else 1), result.output
    assert result.stderr.startswith("error: ")
    assert server.format(port=silent_port) in result.stderr
    assert "`psrl up`" in result.stderr
    assert "secret" not in result.output
    assert not [word for word in INSIDES if word in result.output], result.output


async def test_without_temporal_the_list_says_that_its_phases_are_the_last_ones_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listed, "PATIENCE_S", 0.1)
    monkeypatch.setattr(status, "stored_runs", lambda stack: [listed.StoredRun("demo", "running", 3)])
    told = await status.stack_status(write_stack(tmp_path, free_port()))
    assert told["runs"] == {"demo": "running, 3 steps"}
    assert "the last ones recorded in the store: Temporal at 127.0.0.1:" in told["trouble"]


async def test_the_parts_are_shown_also_while_the_store_has_no_tables_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As between the first start of PostgreSQL and its migration."""

    def stored_runs(stack: Stack) -> list[listed.StoredRun]:
        raise StoreRevisionMismatch("it does not have the tables")

    monkeypatch.setattr(status, "stored_runs", stored_runs)
    told = await status.stack_status(write_stack(tmp_path, free_port()))
    assert (told["parts"], told["runs"], told["trouble"]) == ({}, {}, "it does not have the tables")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            'connection to server at "db", port 1 failed: FATAL:  password authentication failed for user "u"\n',
            'it says: password authentication failed for user "u"',
        ),
        ("could not translate host name", "unknown host"),
        ("server closed the connection unexpectedly\n\tThis probably means", "connection lost"),
        ("something\nnew", "something new"),
    ],
)
def test_a_reason_is_told_in_words_of_our_own_and_one_we_do_not_know_as_it_is(said: str, told: str) -> None:
    assert why_silent(said) == told


def _leaves(command: Any, prefix: str = "") -> Iterator[str]:
    for name, inner in command.commands.items():
        if hasattr(inner, "commands"):
            yield from _leaves(inner, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}"
