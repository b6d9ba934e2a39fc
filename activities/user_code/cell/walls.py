"""Namespaces: what a program sees of the machine. Everything here raises `OSError` where the machine does not allow it.

Of files, it sees Python's and the system's, read only, devices that hold nothing, and a file system in memory; of the
network, its own loopback; of processes, those it has started.
"""

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

from .processes import checked, libc

NEW_MOUNTS, NEW_UTS, NEW_IPC = 0x20000, 0x4000000, 0x8000000
NEW_USERS, NEW_PIDS, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
NOSUID, NODEV, BIND, RECURSIVE, PRIVATE = 2, 4, 4096, 16384, 1 << 18
DETACH = 2
SET_INTERFACE_FLAGS, UP = 0x8914, 1
MOUNT_SETATTR = 442
HERE, AT_RECURSIVE, ATTR_READ_ONLY, ATTR_NOSUID = -100, 0x8000, 1, 2

SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store"),
    *("/etc/alternatives", "/etc/group", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"),
    *("/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd", "/etc/ssl"),
)
DEVICES = ("/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")


def new_namespaces() -> None:
    """For this process and its children; of processes, for its children. Who is not root gets the right to them with a
    namespace of users."""
    spaces = NEW_MOUNTS | NEW_PIDS | NEW_NETWORK | NEW_IPC | NEW_UTS
    if os.geteuid() == 0:
        checked(libc.unshare(spaces), "unshare")
    else:
        new_users(spaces)


def new_users(spaces: int = 0) -> None:
    """A namespace of users, in which this process is who it was."""
    user, group = os.geteuid(), os.getegid()
    checked(libc.unshare(NEW_USERS | spaces), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def no_further_users() -> None:
    """Who makes a namespace of users is root in it, and may mount memory that no limit knows of. For processes of this
    one's namespace; this one still has the right to say so."""
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def own_root(size_mb: int, readable: list[str]) -> None:
    """For the first process of a namespace. Once it is done, nothing of the old root can be reached."""
    shared = {place: os.path.realpath(place) for place in (*SYSTEM, *readable) if os.path.exists(place)}
    _mount("none", "/", RECURSIVE | PRIVATE)
    _mount("tmpfs", "/tmp", NOSUID | NODEV, "tmpfs", f"size={size_mb}m,mode=755")
    os.mkdir("/tmp/old")
    checked(libc.pivot_root(b"/tmp", b"/tmp/old"), "pivot_root")
    os.chdir("/")
    for place, real in shared.items():
        # What lies in a folder that was brought is there already.
        if not os.path.exists(place):
            _bring(f"/old{real}", place)
            _read_only(place)
    for place in DEVICES:
        _bring(f"/old{place}", place)
    for place in ("/tmp", "/dev/shm"):
        os.makedirs(place, exist_ok=True)
        os.chmod(place, 0o1777)
    os.mkdir("/proc")
    _mount("proc", "/proc", NOSUID | NODEV, "proc")
    checked(libc.umount2(b"/old", DETACH), "umount")
    os.rmdir("/old")


def up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_INTERFACE_FLAGS, struct.pack("16sh14x", b"lo", UP))


def _bring(real: str, place: str) -> None:
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if os.path.isdir(real):
        os.mkdir(place)
    else:
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(real, place, BIND | RECURSIVE)


def _read_only(place: str) -> None:
    """With all that is mounted below."""
    attributes = ctypes.create_string_buffer(struct.pack("QQQQ", ATTR_READ_ONLY | ATTR_NOSUID, 0, 0, 0), 32)
    done = libc.syscall(MOUNT_SETATTR, HERE, place.encode(), AT_RECURSIVE, attributes, ctypes.c_size_t(32))
    checked(done, f"mount_setattr {place}")


def _mount(source: str, place: str, flags: int, kind: str = "", options: str = "") -> None:
    done = libc.mount(source.encode(), place.encode(), kind.encode() or None, flags, options.encode() or None)
    checked(done, f"mount {place}")
