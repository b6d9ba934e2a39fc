"""Checkpoints of the trainer: written beside the next step, complete or absent, and never in the way of a recovery."""

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import Engine, func, select, update
from transformers import AutoModelForCausalLM

from psrl.activities.store.connections import sync_store
from psrl.schemas.errors import ModelError, StorageFull
from psrl.schemas.messages.training import DataPosition
from psrl.schemas.tables import Batch, BatchMember, Checkpoint, Group, Run, Segment
from psrl.workers.trainer import checkpoint
from psrl.workers.trainer.stages import Stages
from psrl.workers.trainer.tenancy import OpenRun
from tests.support.tiny_model import make_tiny_model
from tests.support.trainer_lab import RUN, STEPS, Lab

pytestmark = pytest.mark.integration

PATIENCE_S = 30


@pytest.fixture
def lab(tmp_path: Path, postgres_url: str, tiny_model_dir: Path) -> Iterator[Lab]:
    engine = sync_store(postgres_url)
    lab = Lab(tmp_path, engine, tiny_model_dir)
    lab.fill()
    yield lab
    engine.dispose()


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator["SlowDisk"]:
    disk = SlowDisk()
    monkeypatch.setattr(checkpoint, "_write_files", disk)
    yield disk
    disk.go.set()


class SlowDisk:
    """A write of a checkpoint reaches it and waits for `go`, then meets the next of `faults`."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self.faults: list[OSError] = []
        self.versions: list[int] = []
        self._write = checkpoint._write_files

    def __call__(self, save: Any, *rest: Any) -> None:
        self.versions.append(save.version)
        self.reached.set()
        assert self.go.wait(PATIENCE_S)
        self._write(save, *rest)
        if self.faults:
            raise self.faults.pop(0)


def tenant(stages: Stages) -> OpenRun:
    return stages._tenancy.enter(RUN)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()  # type: ignore[no-any-return]


def saved_versions(lab: Lab) -> list[int]:
    with lab.engine.connect() as connection:
        return list(connection.scalars(select(Checkpoint.version).order_by(Checkpoint.version)))


def files(lab: Lab) -> list[str]:
    return sorted(path.name for path in (lab.stack.checkpoints_dir / RUN).iterdir())


# --- beside the next step ------------------------------------------------------------------------------------------


def test_the_next_steps_go_on_while_a_checkpoint_is_written_and_do_not_show_in_it(
    lab: Lab, slow_disk: SlowDisk
) -> None:
    stages = lab.life()
    stages.publish(RUN, 0)
    saving = stages.checkpoint(RUN, 0)
    assert (saving.version, saving.complete) == (1, False)
    assert slow_disk.reached.wait(PATIENCE_S)
    for buffer in (1, 2):
        assert stages.publish(RUN, buffer).version == buffer + 1
    assert not lab.step_folder(1).exists()
    assert saved_versions(lab) == []
    assert not stages.checkpoint(RUN, 0).complete
    slow_disk.go.set()
    stages.close(RUN)
    assert slow_disk.versions == [1]
    assert saved_versions(lab) == [1]

    later = lab.life()
    later.publish(RUN, STEPS - 1)  # From the checkpoint: what it holds is version 1, or the bits would differ.
    assert not tenant(later).recovery.notes
    again = lab.life()
    (lab.stack.checkpoints_dir / RUN).rename(lab.stack.checkpoints_dir / "gone")
    published = lab.manifest(STEPS)
    assert again.publish(RUN, STEPS - 1).version == STEPS
    assert tenant(again).backend.probe() == published.probe


def test_a_checkpoint_waits_for_the_one_before_it(lab: Lab, slow_disk: SlowDisk) -> None:
    stages = lab.life()
    stages.checkpoint(RUN, 0)
    second = threading.Thread(target=stages.checkpoint, args=(RUN, 1))
    second.start()
    assert slow_disk.reached.wait(PATIENCE_S)
    second.join(0.2)
    assert second.is_alive()
    assert slow_disk.versions == [1]
    slow_disk.go.set()
    second.join(PATIENCE_S)
    stages.close(RUN)
    assert saved_versions(lab) == [1, 2]


def test_waiting_for_a_checkpoint_that_is_being_written_does_not_write_it_twice(lab: Lab, slow_disk: SlowDisk) -> None:
    stages = lab.life()
    stages.checkpoint(RUN, 0)
    slow_disk.go.set()
    assert stages.checkpoint(RUN, 0, wait=True).complete
    assert slow_disk.versions == [1]
    assert lab.step_folder(1).exists()


@pytest.mark.parametrize("last", ["next stage", "close"])
def test_a_write_that_failed_in_the_background_is_made_good(lab: Lab, slow_disk: SlowDisk, last: str) -> None:
    slow_disk.faults = [OSError(5, "Input/output error")]
    slow_disk.go.set()
    stages = lab.life()
    stages.checkpoint(RUN, 0)
    if last == "next stage":
        _ended(stages)
        stages.log_probs(RUN, 1)
    else:
        stages.close(RUN)
    assert slow_disk.versions == [1, 1]
    assert saved_versions(lab) == [1]


def test_a_fault_that_stays_stops_every_stage_until_it_is_gone(lab: Lab, slow_disk: SlowDisk) -> None:
    slow_disk.faults = [OSError(28, "No space left on device") for _ in range(3)]
    slow_disk.go.set()
    stages = lab.life()
    stages.checkpoint(RUN, 0)
    _ended(stages)
    for stage in (stages.log_probs, stages.update):
        with pytest.raises(StorageFull, match="No space left on device"):
            stage(RUN, 1)
        assert files(lab) == []
    assert stages.publish(RUN, 1).version == 2
    assert (files(lab), saved_versions(lab)) == (["step_000001"], [1])


def _ended(stages: Stages) -> None:
    """The write in progress has ended, with or without an error."""
    pending = tenant(stages).checkpoints._saver._pending
    assert pending is not None
    pending[1].exception(PATIENCE_S)


def test_a_row_that_a_crash_kept_from_being_written_is_made_good(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = lab.life()
    stages.checkpoint(RUN, 0, wait=True)
    with lab.engine.begin() as connection:
        connection.execute(Checkpoint.__table__.delete())  # type: ignore[attr-defined]
    assert lab.life().checkpoint(RUN, 0).complete
    assert saved_versions(lab) == [1]


# --- what a checkpoint holds ---------------------------------------------------------------------------------------


def test_a_checkpoint_says_which_prompts_its_weights_have_seen(lab: Lab) -> None:
    """20 groups of 4 per buffer; of a data set of 8. Two buffers are trained; group 5 belongs to a later one, 6 failed,
    and what was drawn after that is open or was filtered."""
    with lab.engine.begin() as connection:
        connection.execute(update(Run).values(prompts=8, data_fingerprint="f", skipped_too_long=3))
        connection.exec_driver_sql("UPDATE groups SET epoch = group_id::int / 8, position = mod(group_id::int, 8)")
        connection.execute(update(BatchMember).where(BatchMember.group_id == "000005").values(buffer=2))
        connection.execute(BatchMember.__table__.delete().where(BatchMember.group_id >= "000012"))  # type: ignore[attr-defined]
        for group, status in {"000006": "failed", "000012": "filtered", "000013": "live"}.items():
            connection.execute(update(Group).where(Group.group_id == group).values(status=status))
        connection.execute(BatchMember.__table__.delete().where(BatchMember.group_id == "000006"))  # type: ignore[attr-defined]
    lab.life().checkpoint(RUN, 1, wait=True)
    stored = json.loads((lab.step_folder(2) / "data_position.json").read_text())
    assert DataPosition.model_validate(stored) == DataPosition(
        run_id=RUN,
        version=2,
        data_fingerprint="f",
        prompts=8,
        skipped_too_long=3,
        trained_groups=6,
        trained_trajectories=24,
        first_epoch=0,
        next_place=5,
        next_epoch=0,
        next_position=5,
        trained_ahead=(7,),
        left={"failed": 1, "filtered": 1},
    )


def test_the_marker_says_its_format_and_another_one_is_not_read(lab: Lab) -> None:
    lab.life().checkpoint(RUN, 0, wait=True)
    marker = lab.step_folder(1) / "COMMITTED"
    stored = json.loads(marker.read_text())
    assert stored["format"] == 1
    assert "data_position.json" in stored["files"]
    marker.write_text(json.dumps(stored | {"format": 2}))
    published = lab.life().publish(RUN, 1)
    assert published.notes == (
        f"{marker} is of format 2; this release reads format 1; an older checkpoint, or the initial model, was used",
    )


# --- recovery ------------------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_told_with_the_next_version_and_only_with_that(lab: Lab) -> None:
    stages = lab.life()
    for buffer in (0, 1):
        stages.checkpoint(RUN, buffer, wait=True)
    (lab.step_folder(2) / "trainer_state.pt").unlink()
    stages = lab.life()
    stages.log_probs(RUN, 2)
    told = stages.publish(RUN, 2)
    assert stages.publish(RUN, 2).notes == told.notes
    (note,) = told.notes
    assert note.startswith(f"{lab.step_folder(2) / 'trainer_state.pt'} cannot be read: No such file")
    assert stages.publish(RUN, 3).notes == ()


def test_batches_are_kept_so_that_the_loss_of_every_checkpoint_costs_time_and_nothing_else(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    stages = lab.life()
    for buffer in range(STEPS):
        stages.publish(RUN, buffer)
        stages.checkpoint(RUN, buffer, wait=True)
    with lab.engine.connect() as connection:
        kept = [connection.scalar(select(func.count()).select_from(table)) for table in (Batch, Segment)]
    assert kept[0] == STEPS
    assert kept[1] >= STEPS * 16  # type: ignore[operator]
    for name in files(lab):
        (lab.stack.checkpoints_dir / RUN / name / "model.safetensors").write_bytes(b"")
    with caplog.at_level(logging.INFO):
        published = lab.life().publish(RUN, STEPS - 1)
    assert "replaying batches 0 to 3" in caplog.text
    assert not any("differs from the published" in record.message for record in caplog.records)
    assert len(published.notes) == 1


def test_a_published_step_asked_for_again_after_a_restart_gives_the_stored_result(lab: Lab) -> None:
    """The completion of `publish` was lost with the process."""
    first = lab.life().publish(RUN, 0)
    file = lab.stack.weights_dir / lab.manifest(1).uri / "shard-000.safetensors"
    before = (file.stat().st_ino, file.stat().st_mtime_ns, lab.manifest(1))
    second = lab.life().publish(RUN, 0)
    assert (second.version, second.bytes) == (first.version, first.bytes)
    assert (file.stat().st_ino, file.stat().st_mtime_ns, lab.manifest(1)) == before
    repeated = lab.life().update(RUN, 0)
    assert repeated.model_copy(update={"seconds": 0}) == lab.life().update(RUN, 0).model_copy(update={"seconds": 0})
    assert (file.stat().st_ino, file.stat().st_mtime_ns, lab.manifest(1)) == before


def test_a_trainer_that_was_taken_for_dead_does_not_touch_what_the_next_one_published(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = lab.life(), lab.life()
    for stages in (old, new):
        stages.update(RUN, 0)
    writing, go = threading.Event(), threading.Event()
    transport = tenant(old).publisher._transport  # type: ignore[attr-defined]
    plain = transport.write

    def slow(*arguments: Any) -> Any:
        writing.set()
        assert go.wait(PATIENCE_S)
        return plain(*arguments)

    monkeypatch.setattr(transport, "write", slow)
    results: list[Any] = []
    threads = [threading.Thread(target=lambda s=stages: results.append(s.publish(RUN, 0))) for stages in (old, new)]
    threads[0].start()
    assert writing.wait(PATIENCE_S)
    threads[1].start()
    threads[1].join(0.3)
    assert threads[1].is_alive()
    go.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [result.version for result in results] == [1, 1]
    assert tenant(new).publisher.lease(1).tensors


# --- models that do not fit ----------------------------------------------------------------------------------------


def test_a_model_of_other_shapes_than_the_checkpoint_is_refused_by_tensor_and_shapes(lab: Lab, tmp_path: Path) -> None:
    lab.model = make_tiny_model(tmp_path / "model")
    lab.fill("other")
    with lab.engine.begin() as connection:
        connection.execute(update(Run).where(Run.run_id == RUN).values(config=_config_of(lab.engine, "other")))
    lab.life().checkpoint(RUN, 0, wait=True)
    make_tiny_model(tmp_path / "model", hidden=48)
    with pytest.raises(
        ModelError,
        match=r"path=.* does not fit .*step_000001: tensor 'model.embed_tokens.weight' is \[128, 48\], .*32\]",
    ):
        lab.life().publish(RUN, 1)


def test_a_model_of_other_shapes_than_version_0_is_refused_by_tensor_and_shapes(lab: Lab, tmp_path: Path) -> None:
    lab.model = make_tiny_model(tmp_path / "model")
    lab.fill("other")
    with lab.engine.begin() as connection:
        connection.execute(update(Run).where(Run.run_id == RUN).values(config=_config_of(lab.engine, "other")))
    lab.life().open(RUN)
    make_tiny_model(tmp_path / "model", hidden=48)
    with pytest.raises(ModelError, match=r"began with: tensor 'model.embed_tokens.weight' is \[128, 48\], exp.*, 32\]"):
        lab.life().publish(RUN, 0)


def test_a_model_whose_configuration_contradicts_its_weights_is_refused(lab: Lab, tmp_path: Path) -> None:
    lab.model = make_tiny_model(tmp_path / "model")
    lab.fill("other")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"intermediate_size": 80}))
    with lab.engine.begin() as connection:
        connection.execute(update(Run).where(Run.run_id == RUN).values(config=_config_of(lab.engine, "other")))
    with pytest.raises(ModelError, match=r"down_proj.weight' is \[32, 64\], expected \[32, 80\] by config.json"):
        lab.life().open(RUN)


def _config_of(engine: Engine, run: str) -> dict[str, Any]:
    with engine.connect() as connection:
        return connection.execute(select(Run.config).where(Run.run_id == run)).scalar_one()
