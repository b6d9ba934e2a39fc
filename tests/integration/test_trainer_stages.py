"""The trainer's stages on a real store: idempotence, and recovery that repeats every bit."""

import dataclasses
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import Engine, select, update
from transformers import AutoModelForCausalLM, AutoTokenizer

from psrl.activities.weights.checksum import digest
from psrl.activities.weights.transports import open_transport
from psrl.schemas.config import PsMode
from psrl.schemas.errors import InstanceBusy, InvariantViolated, ModelError, RunUnknown, StorageFull, WeightsRefused
from psrl.schemas.ids import RunId
from psrl.schemas.tables import Checkpoint, Run, Segment, Trajectory
from psrl.schemas.weights import Checksum
from psrl.workers.trainer.batches import read_batch
from psrl.workers.trainer.stages import Stages
from tests.support.tiny_model import make_tiny_model
from tests.support.trainer_lab import RUN, STEPS, Lab
from tests.support.training import synthetic_batch

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def lab(tmp_path: Path, engine: Engine, model_path: Path) -> Lab:
    return Lab(tmp_path, engine, model_path)


def stage_calls(run: str, saves: tuple[int, ...] = (1, 3)) -> list[tuple[str, Callable[[Stages], Any]]]:
    """Every call of a whole run in order, with a checkpoint after the buffers `saves`."""
    run_id = RunId(run)
    calls: list[tuple[str, Callable[[Stages], Any]]] = [("open", lambda stages: stages.open(run_id))]
    for buffer in range(STEPS):
        for name in ("log_probs", "advantages", "update", "publish"):
            calls.append((name, lambda stages, name=name, buffer=buffer: getattr(stages, name)(run_id, buffer)))
        if buffer in saves:
            calls.append(("checkpoint", lambda stages, buffer=buffer: stages.checkpoint(run_id, buffer, wait=True)))
    return calls


def without_time(result: Any) -> Any:
    return result and result.model_copy(update={"seconds": 0.0}) if hasattr(result, "seconds") else result


def undisturbed(lab: Lab, run: str = RUN) -> list[Any]:
    stages = lab.life()
    return [without_time(call(stages)) for _, call in stage_calls(run)]


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "everything on": {
        "actor": {"ppo_mini_batch_size": 2, "ppo_epochs": 2, "use_kl_loss": True, "ppo_max_token_len_per_gpu": 64},
        "algorithm": {"rollout_correction": {"rollout_is": "token"}},
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_trainer_that_dies_between_all_stages_publishes_the_same_bits(lab: Lab, variant: str) -> None:
    lab.fill("calm", **VARIANTS[variant])
    lab.fill("rough", **VARIANTS[variant])
    calm = undisturbed(lab, "calm")
    rough = [without_time(call(lab.life())) for _, call in stage_calls("rough")]
    assert lab.checksums("calm") == lab.checksums("rough")
    for (name, _), one, other in zip(stage_calls("calm"), calm, rough, strict=True):
        if name != "checkpoint":
            assert one == other, name


def test_every_stage_repeated_returns_the_same_and_changes_nothing(lab: Lab) -> None:
    lab.fill("calm")
    lab.fill("twice")
    undisturbed(lab, "calm")
    stages = lab.life()
    for name, call in stage_calls("twice"):
        first, second = call(stages), call(stages)
        assert without_time(first) == without_time(second), name
    assert lab.checksums("calm") == lab.checksums("twice")


def test_a_stage_makes_up_for_those_that_were_skipped(lab: Lab) -> None:
    lab.fill("calm")
    lab.fill("hasty")
    undisturbed(lab, "calm")
    stages = lab.life()
    stages.open(RunId("hasty"))
    for buffer in range(STEPS):
        stages.publish(RunId("hasty"), buffer)
    assert lab.checksums("calm") == lab.checksums("hasty")


def test_an_update_that_fails_half_way_leaves_no_trace(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    actor = {"ppo_mini_batch_size": 1}
    lab.fill("calm", actor=actor)
    lab.fill("rough", actor=actor)
    undisturbed(lab, "calm")
    stages = lab.life()
    plain, steps = torch.optim.AdamW.step, 0

    def failing(self: torch.optim.AdamW, *args: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps in (3, 11):
            raise OSError("out of luck")
        return plain(self, *args)

    monkeypatch.setattr(torch.optim.AdamW, "step", failing)
    for name, call in stage_calls("rough"):
        if name == "update":
            try:
                call(stages)
            except OSError:
                call(stages)
        else:
            call(stages)
    assert steps > 11
    assert lab.checksums("calm") == lab.checksums("rough")


def test_a_checkpoint_loads_with_plain_transformers_and_holds_the_published_weights(lab: Lab) -> None:
    lab.fill()
    stages = lab.life()
    stages.publish(RUN, 0)
    saved = stages.checkpoint(RUN, 0, wait=True)
    assert Path(saved.path) == lab.step_folder(1)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(saved.path), AutoTokenizer.from_pretrained(saved.path)
    probe = lab.manifest(1).probe
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([probe.token_ids])).logits[0].log_softmax(-1)
    found = [float(logits[i, token]) for i, token in enumerate(probe.token_ids[1:])]
    assert found == pytest.approx(probe.logprobs, abs=1e-5)
    assert tokenizer("1+2=")["input_ids"]


def test_checkpoints_beyond_the_limit_are_removed_with_their_rows(lab: Lab, engine: Engine) -> None:
    lab.fill(trainer={"max_ckpt_to_keep": 2})
    stages = lab.life()
    for buffer in range(4):
        stages.checkpoint(RUN, buffer, wait=True)
    kept = sorted(path.name for path in (lab.stack.checkpoints_dir / RUN).iterdir())
    assert kept == ["step_000003", "step_000004"]
    with engine.connect() as connection:
        rows = connection.execute(select(Checkpoint.version, Checkpoint.path).order_by(Checkpoint.version)).all()
    assert [tuple(row) for row in rows] == [(3, str(lab.step_folder(3))), (4, str(lab.step_folder(4)))]


@pytest.mark.parametrize("fault", ["flipped byte", "missing file", "missing marker", "cut short", "other run"])
def test_a_damaged_checkpoint_is_passed_over_and_named(lab: Lab, caplog: pytest.LogCaptureFixture, fault: str) -> None:
    lab.fill()
    undisturbed(lab)
    wanted = lab.checksums()
    folder = lab.step_folder(4)
    damaged = folder / {"missing marker": "COMMITTED", "other run": "COMMITTED"}.get(fault, "model.safetensors")
    if fault.startswith("missing"):
        damaged.unlink()
    elif fault == "flipped byte":
        data = bytearray(damaged.read_bytes())
        data[len(data) // 2] ^= 1
        damaged.write_bytes(data)
    elif fault == "cut short":
        damaged.write_bytes(damaged.read_bytes()[:-100])
    else:
        damaged.write_text(damaged.read_text().replace("execution-of-quick", "execution-of-another"))
    with caplog.at_level(logging.INFO):
        lab.life().publish(RUN, 4)
    assert any(str(damaged) in record.message for record in caplog.records if record.levelno == logging.WARNING)
    assert f"loaded {lab.step_folder(2)}" in caplog.text
    assert not any("differs from the published" in record.message for record in caplog.records)
    assert lab.checksums() == wanted
    # The same version can be saved again over the damaged one.
    lab.life().checkpoint(RUN, 3, wait=True)
    with caplog.at_level(logging.INFO):
        caplog.clear()
        lab.life().publish(RUN, 4)
    assert f"loaded {folder}" in caplog.text


def test_what_a_crash_left_of_a_save_is_cleared_away(lab: Lab) -> None:
    lab.fill()
    leftover = lab.stack.checkpoints_dir / RUN / ".tmp-step_000001"
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_bytes(b"half")
    lab.life().checkpoint(RUN, 0, wait=True)
    assert [path.name for path in (lab.stack.checkpoints_dir / RUN).iterdir()] == ["step_000001"]


def test_a_save_that_fails_leaves_nothing_behind(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.fill()
    stages = lab.life()

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(
            StorageFull, match=r"quick: No space left on device: [\d,]+ bytes are needed, [\d,]+ are free"
        ):
            stages.checkpoint(RUN, 0, wait=True)
    assert list((lab.stack.checkpoints_dir / RUN).iterdir()) == []
    assert stages.checkpoint(RUN, 0, wait=True).version == 1


def test_another_run_must_wait_until_the_trainer_is_closed(lab: Lab) -> None:
    lab.fill()
    lab.fill("other")
    stages = lab.life()
    stages.open(RUN)
    with pytest.raises(InstanceBusy, match=r"'quick'.*'other' must wait"):
        stages.open(RunId("other"))
    stages.close(RunId("other"))
    with pytest.raises(InstanceBusy):
        stages.log_probs(RunId("other"), 0)
    stages.close(RUN)
    stages.close(RUN)
    assert stages.open(RunId("other")).version == 0


def test_a_run_that_ended_without_closing_does_not_hold_the_trainer(lab: Lab, engine: Engine) -> None:
    lab.fill()
    lab.fill("other")
    stages = lab.life()
    stages.open(RUN)
    with engine.begin() as connection:
        connection.execute(update(Run).where(Run.run_id == RUN).values(phase="failed"))
    assert stages.open(RunId("other")).version == 0


def test_a_model_that_changed_since_the_run_began_is_refused(lab: Lab, tmp_path: Path) -> None:
    lab.model = make_tiny_model(tmp_path / "model", seed=1)
    lab.fill()
    lab.life().open(RUN)
    make_tiny_model(tmp_path / "model", seed=2)
    with pytest.raises(ModelError, match=r"not the model that run 'quick' began with"):
        lab.life().publish(RUN, 0)


def test_a_model_directory_without_weights_is_refused(lab: Lab, tmp_path: Path) -> None:
    lab.model = make_tiny_model(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    lab.fill()
    with pytest.raises(ModelError, match=r"model\.path=.*cannot be loaded"):
        lab.life().open(RUN)


def test_an_unknown_run_and_a_missing_batch_are_named(lab: Lab) -> None:
    lab.fill()
    with pytest.raises(RunUnknown, match="'nobody'"):
        lab.life().open(RunId("nobody"))
    with pytest.raises(InvariantViolated, match="batch 5 of run 'quick'"):
        lab.life().log_probs(RUN, STEPS)


def test_a_batch_is_read_as_it_was_sampled(lab: Lab) -> None:
    lab.fill()
    read, made = read_batch(lab.engine, RUN, 4, 2), synthetic_batch(4, 4, seed=2, missing_share=0.05)
    assert len(read.sequences) == len(made.sequences)
    for one, other in zip(read.sequences, made.sequences, strict=True):
        assert (one.group, one.prompt_tokens, one.reward) == (other.group, other.prompt_tokens, other.reward)
        assert one.ids.tolist() == other.ids.tolist()
        torch.testing.assert_close(one.rollout, other.rollout, equal_nan=True)


def test_a_frozen_policy_steps_and_publishes_and_never_changes(lab: Lab) -> None:
    """Optimizer steps with momentum and weight decay, none of which may move a bit. Field report 47: the same tokens
    are as far from the engine's log-probs at every step."""
    lab.fill(seeds=[0] * STEPS, actor={"optim": {"lr": 0}, "ppo_mini_batch_size": 1})
    stages, gaps = lab.life(), []
    stages.open(RUN)
    for buffer in range(STEPS):
        gaps.append(stages.log_probs(RUN, buffer).gap_mean_abs)
        stats = stages.update(RUN, buffer)
        assert (stats.optimizer_steps, stats.lr, stats.ratio_mean) == (4, 0.0, pytest.approx(1.0, abs=1e-6))
        assert stages.publish(RUN, buffer).version == buffer + 1
    assert len({tuple(version) for version in lab.checksums()}) == 1
    assert gaps == pytest.approx([gaps[0]] * STEPS, abs=1e-6)
    assert gaps[0] > 0.01


def test_a_response_that_was_cut_by_its_length_is_masked_where_the_run_asks_for_it(lab: Lab, engine: Engine) -> None:
    lab.fill(algorithm={"mask_truncated": True})
    with engine.begin() as connection:
        connection.execute(update(Segment).where(Segment.index == 1, Segment.end.is_not(None)).values(end="length"))
    stats = lab.life().log_probs(RUN, 0)
    batch = read_batch(lab.engine, RUN, 4, 0)
    assert [s.truncated for s in batch.sequences[:4]] == [False, True, False, False]
    assert (stats.masked_trajectories, stats.tokens) == (4, len(dataclasses.replace(batch, mask_truncated=True).tokens))
    assert stats.tokens < len(batch.tokens)


def test_old_versions_are_removed_but_version_0_stays(lab: Lab) -> None:
    lab.fill(psrl={"staleness": 0, "rollout_n": 4, "staleness_buffer_entries": 4})
    undisturbed(lab)
    versions = range(STEPS + 1)
    assert [v for v in versions if (lab.stack.weights_dir / lab.manifest(v).uri).exists()] == [0, 3, 4, 5]


def test_bytes_that_a_crash_left_without_a_row_are_replaced(lab: Lab) -> None:
    lab.fill()
    stages = lab.life()
    stages.open(RUN)
    leftover = lab.stack.weights_dir / RUN / "v000001"
    shutil.copytree(lab.stack.weights_dir / RUN / "v000000", leftover)
    stages.publish(RUN, 0)
    assert lab.manifest(1).shards != lab.manifest(0).shards
    with open_transport(PsMode.FILE, lab.stack.weights_dir).lease(lab.manifest(1)) as leased:
        assert "model.embed_tokens.weight" in leased.tensors
        assert "lm_head.weight" not in leased.tensors


def damaged(lab: Lab, version: int) -> Path:
    """Its first shard, with one bit turned."""
    file = lab.stack.weights_dir / lab.manifest(version).uri / lab.manifest(version).shards[0].name
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    return file


def test_a_newest_version_that_was_damaged_on_the_disk_is_rebuilt_bit_for_bit_when_the_run_is_opened(lab: Lab) -> None:
    lab.fill()
    stages = lab.life()
    stages.open(RUN)
    for buffer in range(2):
        stages.publish(RUN, buffer)
    before = lab.manifest(2)
    file = damaged(lab, 2)
    good = lab.manifest(2).shards[0].digest
    assert digest([file.read_bytes()], Checksum.BLAKE3) != good
    opened = lab.life().open(RUN)
    assert "is damaged" in opened.notes[-1]
    assert digest([file.read_bytes()], Checksum.BLAKE3) == good
    assert lab.manifest(2) == before
    assert lab.life().open(RUN).notes == ()


def test_a_damaged_version_that_cannot_be_rebuilt_is_refused_by_name(lab: Lab, engine: Engine) -> None:
    lab.fill()
    stages = lab.life()
    stages.open(RUN)
    stages.publish(RUN, 0)
    damaged(lab, 1)
    with engine.begin() as connection:  # As if other hardware had trained it.
        connection.execute(update(Trajectory).values(reward=0.25).where(Trajectory.index == 0))
    with pytest.raises(WeightsRefused, match="version 1 is damaged on the disk, and what this machine rebuilds"):
        lab.life().open(RUN)
