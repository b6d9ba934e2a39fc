"""Ports of a stack: chosen once, kept, and checked again at every start."""

import random
import socket
from collections.abc import Callable, Collection, Mapping

from ...schemas.errors import UserError
from .parts import COORDINATOR, GATEWAY, POSTGRES, TEMPORAL

LOOPBACK = "127.0.0.1"
TEMPORAL_UI = "temporal-ui"
OUR_PORTS = range(18000, 32000)
"""Below what systems take for outgoing connections (32768 and up on Linux, 49152 and up elsewhere)."""
PREFERRED = {POSTGRES: 0, TEMPORAL: 7233, TEMPORAL_UI: 8233, COORDINATOR: 0, GATEWAY: 0}
"""Temporal's own defaults when they are free: then the plain `temporal` command needs no address. 0 takes any."""


def is_free(port: int) -> bool:
    """Nobody listens there. Connections that an earlier server left in TIME_WAIT do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def choose_ports(
    wanted: Mapping[str, int], kept: Mapping[str, int], names: list[str], say: Callable[[str], None]
) -> dict[str, int]:
    """A free port for each name: the wanted one, else the kept one, else the preferred one, else any.

    Raises `UserError` naming port and part when a wanted one is taken. A kept one that somebody took meanwhile is
    replaced, and said so: nothing stored depends on it.
    """
    chosen: dict[str, int] = {}
    for name in names:
        if name in wanted:
            chosen[name] = _demand(name, wanted[name], chosen)
            continue
        before = kept.get(name)
        if before is not None and before not in chosen.values() and is_free(before):
            chosen[name] = before
            continue
        chosen[name] = _any(name, set(chosen.values()) | set(wanted.values()))
        if before is not None:
            say(f"port {before} of {name} is now taken by another process: using {chosen[name]}")
    return chosen


def _demand(name: str, port: int, chosen: Mapping[str, int]) -> int:
    option = f"--port-{name}"
    for other, its_port in chosen.items():
        if its_port == port:
            raise UserError(f"{option}={port}: that port is already given to {other}; allowed: another port")
    if not 0 < port < 65536:
        raise UserError(f"{option}={port}; allowed: 1 to 65535")
    if not is_free(port):
        raise UserError(
            f"{option}={port}: the port for {name} is taken by another process; allowed: a free port, "
            "or leave the option out and one is picked"
        )
    return port


def _any(name: str, avoid: set[int]) -> int:
    preferred = PREFERRED[name]
    if preferred and preferred not in avoid and is_free(preferred):
        return preferred
    return free_port(avoid)


def free_port(avoid: Collection[int] = ()) -> int:
    """A port for a server that will be started anew when it dies: none that the system may give to a connection
    meanwhile, which would keep the server out."""
    candidates = list(OUR_PORTS)
    random.shuffle(candidates)
    for port in candidates:
        if port not in avoid and is_free(port):
            return port
    raise UserError(f"no port from {OUR_PORTS.start} to {OUR_PORTS.stop - 1} is free")
