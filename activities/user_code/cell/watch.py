"""One program from its start to its end, and to the end of all that it has started."""

import base64
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

from .job import NOBODY, Job
from .processes import (
    DEATH_SIGNAL,
    DUMPABLE,
    MB,
    NO_NEW_PRIVILEGES,
    descendants,
    end_descendants,
    held_mb,
    pids,
    prctl,
    tasks_of,
)
from .walls import new_users, no_further_users

LOOK_S = 0.05
"""How often time and memory are looked at."""
CPU_GRACE_S = 1
"""From the signal that tells a process of its limit of CPU time to its end."""
PIECE = 1 << 16
LIFELINE = 0


def watched(job: Job) -> dict[str, Any]:
    """Raises `OSError` for a program that cannot be started."""
    begun = _begin(job)
    watch = _Watch(job, *begun)
    status, used_s = watch.until_its_end()
    killed_by = watch.killed_by
    if not killed_by and (status == -signal.SIGXCPU or (status == -signal.SIGKILL and used_s >= job.cpu_s)):
        killed_by = "cpu"
    out, err = (base64.b64encode(said).decode() for said in watch.said.values())
    return {"exit": status, "stdout": out, "stderr": err, "killed_by": killed_by}


def _begin(job: Job) -> tuple[int, int, int, int]:
    """Its number, then its standard input, output and error from our side."""
    (given, to), (out, says), (err, complains), (failure, fails) = os.pipe(), os.pipe(), os.pipe(), os.pipe()
    program = os.fork()
    if program == 0:
        _become(job, (given, says, complains), fails)
    for theirs in (given, says, complains, fails):
        os.close(theirs)
    said = os.read(failure, PIECE)  # nothing, from a program that has started
    os.close(failure)
    if said:
        raise OSError(said.decode(errors="replace"))
    return program, to, out, err


def _become(job: Job, standard: tuple[int, int, int], fails: int) -> NoReturn:
    """The program, in the place of this process."""
    try:
        os.setsid()
        for number, end in enumerate(standard):
            os.dup2(end, number)
        if os.geteuid() == 0:
            _be_nobody(job.confined)
        if job.confined:
            no_further_users()
        prctl(DEATH_SIGNAL, signal.SIGKILL)  # a change of user would clear it
        prctl(NO_NEW_PRIVILEGES, 1)
        _limit(job)
        os.chdir(job.folder)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvpe(job.argv[0], job.argv, _environment(job))
    except BaseException as error:  # noqa: BLE001  (told to the process that watches)
        os.write(fails, f"{job.argv[0]}: {error}".encode(errors="replace"))
    os._exit(127)


def _be_nobody(confined: bool) -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    if confined:
        # Processes are counted per namespace of users, so that no other nobody's count here.
        prctl(DUMPABLE, 1)
        new_users()


def _limit(job: Job) -> None:
    # In the open all programs are the same user's: those that run, and those that begin after this one.
    others = 0 if job.confined else tasks_of(os.geteuid()) + job.processes * (os.cpu_count() or 1)
    _set(resource.RLIMIT_CORE, 0)
    _set(resource.RLIMIT_DATA, job.memory_mb * MB)
    _set(resource.RLIMIT_FSIZE, job.disk_mb * MB)
    _set(resource.RLIMIT_NPROC, job.processes + others)
    cpu_s = max(1, round(job.cpu_s))
    _set(resource.RLIMIT_CPU, cpu_s, cpu_s + CPU_GRACE_S)


def _set(which: int, soft: int, hard: int | None = None) -> None:
    """A lower limit of the worker's own stays."""
    _, highest = resource.getrlimit(which)
    limits = [soft, soft if hard is None else hard]
    if highest != resource.RLIM_INFINITY:
        limits = [min(one, highest) for one in limits]
    resource.setrlimit(which, (limits[0], limits[1]))


def _environment(job: Job) -> dict[str, str]:
    """None of the worker's variables: they hold addresses and keys."""
    # Numerical libraries start a thread for each core of the machine, and threads count as processes.
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {
        "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
        "HOME": job.folder,
        "TMPDIR": "/tmp" if job.confined else job.folder,
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        **one_thread,
    }


class _Watch:
    def __init__(self, job: Job, program: int, to: int, out: int, err: int) -> None:
        self._job, self._program = job, program
        self._to, self._to_give = to, memoryview(base64.b64decode(job.stdin))
        self.said = {out: bytearray(), err: bytearray()}
        self.killed_by = ""
        self._poll = select.poll()
        os.set_blocking(to, False)

    def until_its_end(self) -> tuple[int, float]:
        """Its exit status and the CPU time it took. All that it has started has ended as well."""
        ends = time.monotonic() + self._job.wall_s
        ended = os.pidfd_open(self._program)
        for readable in (LIFELINE, ended, *self.said):
            self._poll.register(readable, select.POLLIN)
        self._poll.register(self._to, select.POLLOUT)
        while not self.killed_by:
            ready = {one for one, _ in self._poll.poll(LOOK_S * 1000)}
            if LIFELINE in ready and not os.read(LIFELINE, PIECE):
                raise SystemExit("nobody waits for the program any more")
            if self._to in ready:
                self._give()
            for one in ready & self.said.keys():
                self._take(one)
            if ended in ready:
                break
            self._look(ends)
        self._end_all()
        _, status, used = os.wait4(self._program, 0)
        self._take_the_rest()
        return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime

    def _give(self) -> None:
        try:
            if self._to_give:
                self._to_give = self._to_give[os.write(self._to, self._to_give[:PIECE]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._to_give = self._to_give[:0]
        if not self._to_give:
            self._poll.unregister(self._to)
            os.close(self._to)

    def _take(self, one: int) -> None:
        said = os.read(one, PIECE)
        if not said:
            self._poll.unregister(one)
        room = self._job.output_bytes - len(self.said[one])
        self.said[one] += said[:room]
        if len(said) > room:
            self.killed_by = "output"

    def _take_the_rest(self) -> None:
        """Nobody is left to say more than the pipes hold."""
        for one, taken in self.said.items():
            os.set_blocking(one, False)
            with suppress(BlockingIOError):
                while (room := self._job.output_bytes - len(taken)) and (said := os.read(one, PIECE)):
                    taken.extend(said[:room])

    def _look(self, ends: float) -> None:
        of = [pid for pid in pids() if pid != os.getpid()] if self._job.confined else descendants()
        if time.monotonic() > ends:
            self.killed_by = "time"
        elif held_mb(of) > self._job.memory_mb:
            self.killed_by = "memory"

    def _end_all(self) -> None:
        if self._job.confined:
            # Of those in the namespace; this process is its first, and stays.
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        else:
            end_descendants(leave=self._program)
