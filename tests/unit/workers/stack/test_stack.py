"""The local stack's decisions: parts, ports, settings, the supervisor's configuration. Nothing is started."""

import configparser
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from psrl.schemas.errors import UserError
from psrl.schemas.stack import load_stack
from psrl.workers.stack.parts import KINDS, environment, instance_ids, parse_parts, workers
from psrl.workers.stack.ports import OUR_PORTS, choose_ports
from psrl.workers.stack.settings import Settings, UpRequest, load_settings, merge, normal_url, save
from psrl.workers.stack.supervision import GROUPS, SOCKET_LIMIT, Program, configuration, socket_path
from psrl.workers.stack.up import up
from tests.support.child import free_port


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def silent(line: str) -> None:
    return None


def test_parts_are_parsed_into_start_order() -> None:
    assert parse_parts("coordinator, postgres") == ("postgres", "coordinator")


def test_an_unknown_part_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        UserError, match=r"unknown part 'postgre' \(did you mean 'postgres'\?\); allowed: postgres, temporal"
    ):
        parse_parts("postgre")


def test_there_is_one_rollout_worker_per_instance_on_its_own_queue() -> None:
    found = {worker.name: worker for worker in workers(KINDS, instance_ids(2))}
    assert list(found) == ["orchestrator", "cpu", "rollout-0", "rollout-1", "trainer"]
    assert found["rollout-1"].queue == "psrl.rollout.rollout-1"
    assert found["rollout-1"].command[-2:] == ("--instance", "rollout-1")


def test_workers_import_from_the_users_directory_and_the_users_settings_win(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    values = environment(tmp_path, Path("/work"))
    assert values["PYTHONPATH"] == "/work:/elsewhere"
    assert values["OMP_NUM_THREADS"] == "3"
    assert values["HF_HUB_OFFLINE"] == "1"
    assert values["PSRL_HOME"] == str(tmp_path)


def test_a_wanted_port_that_is_taken_is_refused_naming_port_and_part(taken_port: int) -> None:
    with pytest.raises(UserError, match=f"--port-temporal={taken_port}: the port for temporal is taken"):
        choose_ports({"temporal": taken_port}, {}, ["temporal"], silent)


def test_one_port_for_two_parts_is_refused() -> None:
    port = free_port()
    with pytest.raises(UserError, match="that port is already given to postgres"):
        choose_ports({"postgres": port, "temporal": port}, {}, ["postgres", "temporal"], silent)


def test_a_kept_port_is_used_again() -> None:
    port = free_port()
    assert choose_ports({}, {"postgres": port}, ["postgres"], silent) == {"postgres": port}


def test_a_kept_port_that_somebody_took_is_replaced_and_said_so(taken_port: int) -> None:
    told: list[str] = []
    chosen = choose_ports({}, {"postgres": taken_port}, ["postgres"], told.append)
    assert chosen["postgres"] != taken_port
    assert told == [f"port {taken_port} of postgres is now taken by another process: using {chosen['postgres']}"]


def test_settings_are_kept_and_only_what_is_asked_for_changes(tmp_path: Path) -> None:
    first = merge(UpRequest(home=tmp_path, cwd=tmp_path, instances=3), None)
    save(
        first.model_copy(update={"ports": {"postgres": 1, "temporal": 2, "temporal-ui": 3, "coordinator": 4}}), tmp_path
    )
    again = merge(UpRequest(home=tmp_path, cwd=tmp_path, namespace="other"), load_settings(tmp_path))
    assert (again.instances, again.namespace) == (3, "other")
    assert again.postgres_password == first.postgres_password


def test_the_stack_file_says_where_the_parts_are_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    ports = {"postgres": 1, "temporal": 2, "temporal-ui": 3, "coordinator": 4, "gateway": 5}
    save(Settings(ports=ports, postgres_password="secret"), tmp_path)
    stack = load_stack(tmp_path)
    assert stack.postgres_url == "postgresql+psycopg://psrl:secret@127.0.0.1:1/psrl"
    assert (stack.temporal_address, stack.temporal_ui) == ("127.0.0.1:2", "http://127.0.0.1:3")
    assert (stack.coordinator_address, stack.gateway_address) == ("127.0.0.1:4", "127.0.0.1:5")
    assert stack.instances == ("rollout-0", "rollout-1")
    assert (tmp_path / "stack.json").stat().st_mode & 0o077 == 0


def test_existing_servers_take_the_place_of_embedded_ones(tmp_path: Path) -> None:
    request = UpRequest(home=tmp_path, cwd=tmp_path, postgres_url="postgresql://u:p@db/x", temporal_address="t:7233")
    settings = merge(request, None)
    assert settings.embedded == KINDS[2:]
    assert settings.port_names == ["coordinator", "gateway"]
    assert settings.store_url == "postgresql+psycopg://u:p@db/x"
    assert settings.stack(tmp_path).temporal_address == "t:7233"


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ({}, ("t", "s")),
        ({"instances": 3}, ("t", "s")),
        ({"temporal_address": "other:7233"}, ("", "s")),
        ({"namespace": "other"}, ("", "s")),
        ({"postgres_url": "postgresql://u:p@other/x"}, ("t", "")),
        ({"accept_changed_servers": True}, ("", "")),
    ],
)
def test_a_server_is_known_again_until_another_is_asked_for_or_a_changed_one_is_accepted(
    more: dict[str, Any], kept: tuple[str, str], tmp_path: Path
) -> None:
    before = Settings(temporal_address="t:7233", temporal_id="t", store_id="s")
    settings = merge(UpRequest(home=tmp_path, cwd=tmp_path, **more), before)
    assert (settings.temporal_id, settings.store_id) == kept


@pytest.mark.parametrize("url", ["mysql://u@h/x", "nonsense"])
def test_a_url_that_is_not_postgresql_is_refused(url: str) -> None:
    with pytest.raises(UserError, match=r"--postgres-url=.*allowed: postgresql://"):
        normal_url(url)


def test_a_damaged_settings_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(UserError, match=r"settings\.json is damaged"):
        load_settings(tmp_path)


def test_the_supervisor_stops_workers_first_and_restarts_what_dies(tmp_path: Path) -> None:
    command = ("/bin/my program", "--at", "100%")
    text, variables = configuration(
        tmp_path,
        [
            Program("trainer", command, "workers", environment={"TMPDIR": "/tmp/100%"}),
            Program("postgres", ("pg",), "store"),
        ],
        tmp_path,
    )
    parsed = configparser.RawConfigParser()
    parsed.read_string(text)
    trainer = parsed["program:trainer"]
    assert variables == {}
    assert shlex.split(trainer["command"].replace("%%", "%")) == list(command)
    assert trainer["autorestart"] == trainer["killasgroup"] == trainer["stopasgroup"] == "true"
    assert trainer["environment"] == 'PSRL_PART="trainer",TMPDIR="/tmp/100%%"'
    assert parsed["program:postgres"]["environment"] == 'PSRL_PART="postgres"'
    assert int(parsed["group:workers"]["priority"]) > int(parsed["group:store"]["priority"]) == GROUPS["store"]


def test_a_socket_path_that_is_too_long_is_replaced_by_a_short_one(tmp_path: Path) -> None:
    assert socket_path(Path("/srv/psrl")) == Path("/srv/psrl/run/supervisor.sock")
    deep = tmp_path / ("x" * 100)
    assert len(str(socket_path(deep))) <= SOCKET_LIMIT
    assert socket_path(deep) == socket_path(deep) != socket_path(deep / "y")


async def test_too_few_instances_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--instances=0; allowed: 1 or more"):
        await up(UpRequest(home=tmp_path, cwd=tmp_path, instances=0), silent)


def test_a_server_gets_no_port_that_an_outgoing_connection_could_take_while_it_is_dead() -> None:
    with socket.socket() as connection:
        connection.bind(("127.0.0.1", 0))
        given_by_the_system = connection.getsockname()[1]
    ports = choose_ports({}, {}, ["postgres", "coordinator"], silent)
    assert len(set(ports.values())) == 2
    assert all(port in OUR_PORTS for port in ports.values())
    assert given_by_the_system not in OUR_PORTS
