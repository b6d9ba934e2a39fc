"""`python -m tests.support.kill_at_write WHAT MODEL FOLDER`: save with SIGKILL at every write, and say what was left.

`WHAT` is `checkpoint` or `weights`. One process that has everything in memory forks a child for every point at which
the disk is touched, in order of these points; the child ends itself there. What can be loaded afterwards is printed as
a list in JSON: one entry per point, with its name and the version found, or null. The last entry is the undisturbed
save. Points are the audited calls of Python (open for writing, mkdir, rename, remove), every fsync, and the moments
before, amid and after a file of tensors, whose writes are not audited.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers.modeling_utils

from psrl.activities.weights import shard_file
from psrl.activities.weights.file import FileTransport
from psrl.schemas.errors import WeightsRefused
from psrl.schemas.ids import RunId, Version
from psrl.schemas.messages.training import DataPosition
from psrl.schemas.weights import WeightManifest, WeightProbe
from psrl.workers.trainer import checkpoint
from psrl.workers.trainer.snapshot import read_snapshot, take_snapshot
from psrl.workers.trainer.state import TrainerState, initial_state, load_model, load_tokenizer
from tests.support.training import run_configuration

RUN = RunId("run")
CPU = torch.device("cpu")
NOWHERE = DataPosition(
    run_id=RUN,
    version=0,
    data_fingerprint="",
    prompts=1,
    skipped_too_long=0,
    trained_groups=0,
    trained_trajectories=0,
    first_epoch=0,
    next_place=0,
    next_epoch=0,
    next_position=0,
    trained_ahead=(),
    left={},
)
AUDITED = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Points:
    """Counts the points of a save; ends this process by SIGKILL at point number `end` (from 0)."""

    def __init__(self, end: int, log: Path, folder: Path) -> None:
        self._left, self._log, self._folder = end, log, str(folder)
        sys.addaudithook(self._audit)
        self._patch(os, "fsync", self.reached)
        save, write = transformers.modeling_utils.safe_save_file, shard_file.write
        setattr(  # noqa: B010
            transformers.modeling_utils,
            "safe_save_file",
            lambda tensors, path, **rest: self._around(path, lambda: save(tensors, path, **rest)),
        )
        setattr(shard_file, "write", lambda path, buffers: self._around(path, lambda: write(path, buffers)))  # noqa: B010

    def reached(self, name: str) -> None:
        if self._left == 0:
            self._log.write_bytes(name.encode())
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def _patch(self, module: Any, name: str, reached: Callable[[str], None]) -> None:
        plain = getattr(module, name)

        def patched(*arguments: Any) -> Any:
            reached(name)
            return plain(*arguments)

        setattr(module, name, patched)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and bool((arguments[2] or 0) & WRITES)
        if (event in AUDITED or writes) and str(arguments[0]).startswith(self._folder):
            self.reached(f"{event} {Path(str(arguments[0])).name}")

    def _around(self, path: Path, write: Callable[[], None]) -> None:
        self.reached(f"before {Path(path).name}")
        write()
        whole = os.path.getsize(path)
        if self._left == 0:
            os.truncate(path, whole // 2)
        self.reached(f"amid {Path(path).name}")
        self.reached(f"after {Path(path).name}")


class CheckpointSave:
    """Version 1 is complete; version 2 is saved, and version 1 then removed."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.folder = folder
        self._config = run_configuration(model={"path": str(model)})
        self._tokenizer = load_tokenizer(self._config)
        self._states = [self._state(version) for version in (1, 2)]

    def _state(self, version: int) -> TrainerState:
        state = initial_state(self._config, load_model(Path(self._config.model.path), self._config, CPU).model)
        with torch.no_grad():
            for parameter in state.model.parameters():
                parameter.fill_(version)
                parameter.grad = torch.ones_like(parameter)
        state.optimizer.step()
        state.version = version
        return state

    def _write(self, state: TrainerState) -> None:
        position = NOWHERE.model_copy(update={"version": state.version})
        save = checkpoint.Save(take_snapshot(state, self._tokenizer), position)
        checkpoint.write_checkpoint(save, self.folder, "execution")

    def before(self) -> None:
        self._write(self._states[0])

    def save(self) -> None:
        self._write(self._states[1])
        checkpoint.prune(self.folder, 1)

    def found(self) -> int | None:
        found = checkpoint.newest_complete(self.folder, 9, "execution")
        if found.folder is None:
            return None
        state = read_snapshot(found.folder, found.version, self._config, CPU)
        assert self._same(state, self._states[state.version - 1])
        return state.version

    def again(self) -> bool:
        self.save()
        return self.found() == 2 and [path.name for path in self.folder.iterdir()] == ["step_000002"]

    @staticmethod
    def _same(one: TrainerState, other: TrainerState) -> bool:
        moments = [[s["exp_avg"] for s in state.optimizer.state_dict()["state"].values()] for state in (one, other)]
        tensors = [[*state.model.state_dict().values(), *m] for state, m in zip((one, other), moments, strict=True)]
        return all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))


class WeightsSave:
    """Version 1 is there; version 2 is written and version 1 then removed. The manifest counts as the row."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.folder = folder
        self._tensors = safetensors.torch.load_file(model / "model.safetensors")
        self._transport = FileTransport(folder, shard_bytes=40_000, threads=1)

    def _write(self, version: int) -> None:
        tensors = {name: tensor + version for name, tensor in self._tensors.items()}
        self._transport.write(RUN, Version(version), tensors, WeightProbe(token_ids=(), logprobs=()))

    def before(self) -> None:
        self._write(1)

    def save(self) -> None:
        self._write(2)
        self._transport.remove(RUN, Version(1))

    def found(self) -> int | None:
        for version in (2, 1):
            manifest = self.folder / RUN / f"v{version:06d}" / "manifest.json"
            if manifest.exists():
                try:
                    leased = self._transport.lease(WeightManifest.model_validate_json(manifest.read_text()))
                except WeightsRefused:
                    return None
                with leased:
                    same = (torch.equal(leased.tensors[name], self._tensors[name] + version) for name in self._tensors)
                    assert all(same)
                return version
        return None

    def again(self) -> bool:
        for version in (1, 2):
            self._transport.remove(RUN, Version(version))
        self._write(2)
        return self.found() == 2 and [path.name for path in (self.folder / RUN).iterdir()] == ["v000002"]


def one_death(subject: CheckpointSave | WeightsSave, point: int, log: Path) -> dict[str, Any]:
    shutil.rmtree(subject.folder, ignore_errors=True)
    log.write_bytes(b"none")
    subject.before()
    child = os.fork()
    if not child:
        Points(point, log, subject.folder)
        subject.save()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status)
    assert killed or os.WEXITSTATUS(status) == 0, "the save failed by itself"
    return {"point": log.read_text(), "killed": killed, "found": subject.found(), "again": subject.again()}


def main(what: str, model: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    kinds: dict[str, type[CheckpointSave] | type[WeightsSave]] = {"checkpoint": CheckpointSave, "weights": WeightsSave}
    subject = kinds[what](model, folder / "saves")
    results: list[dict[str, Any]] = []
    while not results or results[-1]["killed"]:
        results.append(one_death(subject, len(results), folder / "point"))
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
