"""Tenancy, recovery and checkpoints around a backend without torch: whatever happens, a state is its version's."""

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from psrl.schemas.config import RunConfig, parse_config
from psrl.schemas.errors import InstanceBusy, RunUnknown
from psrl.schemas.ids import RunId
from psrl.workers.trainer.stages import Stages
from tests.support.fake_trainer import Disk, state_of

ONE, TWO = RunId("one"), RunId("two")
POINTS = (
    *("start", "restore", "log-probs", "advantages", "amid an update", "export"),
    *("after the row of a version", "amid a snapshot"),
)


def configuration() -> RunConfig:
    return parse_config(
        {
            "model": {"path": "m"},
            "data": {"train_files": ["t"]},
            "reward": {"function": "a:b"},
            "psrl": {"rollout_n": 2},
            "trainer": {"max_ckpt_to_keep": 2},
        }
    )


class Fault(Exception):
    """Of a stage: the process lives on."""


class Death(BaseException):
    """Of the process."""


class Faults:
    """Raises at the next pass of an armed point."""

    def __init__(self) -> None:
        self.armed: dict[str, type[BaseException]] = {}

    def __call__(self, point: str) -> None:
        if (kind := self.armed.pop(point, None)) is not None:
            raise kind(point)


class Lives(RuleBasedStateMachine):
    """One run's steps through errors, deaths, damaged checkpoints and another run that wants the trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="psrl-lives-"))
        self.disk = Disk(self.home, configuration(), (ONE, TWO))
        self.faults = Faults()
        self.stages: Stages = self.disk.process(self.faults)
        self.results: dict[tuple[str, int], Any] = {}
        self.attempt("open")

    def teardown(self) -> None:
        self.faults.armed.clear()
        self.stages.shutdown()
        shutil.rmtree(self.home)

    @property
    def buffer(self) -> int:
        """That is being trained: the run publishes in order."""
        return self.disk.published[ONE].newest() or 0

    def attempt(self, stage: str, *arguments: Any) -> Any:
        """As Temporal does: repeated until it succeeds, in a new process after a death."""
        while True:
            try:
                return getattr(self.stages, stage)(ONE, *arguments)
            except Fault:
                continue
            except Death:
                self.next_life()

    def next_life(self) -> None:
        self.settle()  # The thread of a dead process does not go on.
        self.stages = self.disk.process(self.faults)

    def settle(self) -> None:
        """A write in the background has ended, with or without an error."""
        tenant = self.stages._tenancy._tenant
        if tenant is not None and (pending := tenant.checkpoints._saver._pending) is not None:
            pending[1].exception()

    @rule(point=st.sampled_from(POINTS), kind=st.sampled_from([Fault, Death]))
    def arm(self, point: str, kind: type[BaseException]) -> None:
        self.faults.armed[point] = kind

    @rule(stage=st.sampled_from(["log_probs", "advantages", "update"]))
    def work(self, stage: str) -> None:
        result = self.attempt(stage, self.buffer)
        assert self.results.setdefault((stage, self.buffer), result) == result

    @rule()
    def publish(self) -> None:
        buffer = self.buffer
        assert self.attempt("publish", buffer).version == buffer + 1

    @precondition(lambda self: self.buffer > 0)
    @rule()
    def publish_again(self) -> None:
        assert self.attempt("publish", self.buffer - 1).version == self.buffer

    @precondition(lambda self: self.buffer > 0)
    @rule(wait=st.booleans())
    def save(self, wait: bool) -> None:
        saved = self.attempt("checkpoint", self.buffer - 1, wait)
        assert saved.version == self.buffer
        if wait:
            assert (self.disk.folder(ONE, saved.version) / "COMMITTED").exists()

    @rule(amid_a_write=st.booleans())
    def die(self, amid_a_write: bool) -> None:
        self.next_life()
        if amid_a_write:
            left = self.home / ONE / ".tmp-step_000001"
            left.mkdir(parents=True, exist_ok=True)
            (left / "weights").write_text("half")

    @rule(version=st.integers(1, 6), file=st.sampled_from(["COMMITTED", "state.json", "weights", ""]))
    def harm(self, version: int, file: str) -> None:
        self.settle()
        folder = self.disk.folder(ONE, version)
        with contextlib.suppress(FileNotFoundError):
            if not file:
                shutil.rmtree(folder)
            elif (folder / file).exists():
                (folder / file).write_text("damaged")

    @rule()
    def damage_newest_version(self) -> None:
        self.disk.published[ONE].damaged.add(self.buffer)
        self.attempt("open")
        assert not self.disk.published[ONE].damaged

    @rule()
    def another_asks(self) -> None:
        self.attempt("log_probs", self.buffer)
        with pytest.raises(InstanceBusy, match="run 'two' must wait"):
            self.stages.update(TWO, 0)

    @rule()
    def another_takes_over_and_ends(self) -> None:
        self.faults.armed.clear()
        self.disk.over = {ONE}
        self.stages.open(TWO)
        self.stages.publish(TWO, self.disk.published[TWO].newest() or 0)
        self.disk.over = {TWO}

    @invariant()
    def every_version_is_that_of_its_batches(self) -> None:
        for run, published in self.disk.published.items():
            assert published.versions == {version: state_of(run, version) for version in published.versions}
            assert sorted(published.versions) == list(range(len(published.versions)))


Lives.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLives = Lives.TestCase


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path, configuration(), (ONE, TWO))


def test_a_restarted_process_replays_from_the_newest_checkpoint_that_is_old_enough(disk: Disk) -> None:
    reached: list[str] = []
    stages = disk.process()
    for buffer in range(4):
        stages.publish(ONE, buffer)
        stages.checkpoint(ONE, buffer, wait=True)
    disk.process(reached.append).log_probs(ONE, 3)
    assert reached == ["restore", "log-probs"], "version 4 is too new for buffer 3; version 3 is there"
    reached.clear()
    for version in (3, 4):
        shutil.rmtree(disk.folder(ONE, version))
    disk.process(reached.append).publish(ONE, 3)
    assert reached.count("amid an update") == 4, "the older ones were pruned: all is replayed"


def test_an_update_that_fails_half_way_is_rebuilt_from_what_is_stored(disk: Disk) -> None:
    faults = Faults()
    stages = disk.process(faults)
    stages.log_probs(ONE, 0)
    faults.armed["amid an update"] = Fault
    with pytest.raises(Fault):
        stages.update(ONE, 0)
    assert stages._tenancy.enter(ONE).backend.version is None
    stages.publish(ONE, 0)
    assert disk.published[ONE].versions == {1: state_of(ONE, 1)}


def test_a_run_that_was_deleted_and_admitted_anew_begins_with_nothing_of_the_old_one(disk: Disk) -> None:
    stages = disk.process()
    stages.open(ONE)
    stages.publish(ONE, 0)
    stages.checkpoint(ONE, 0, wait=True)
    held = stages._tenancy.enter(ONE)
    disk.executions[ONE] = "another"
    disk.published[ONE].versions.clear()
    assert stages.open(ONE).version == 0
    assert stages._tenancy.enter(ONE) is not held
    stages.checkpoint(ONE, 0, wait=True)
    assert "another" in (disk.folder(ONE, 1) / "COMMITTED").read_text()


def test_a_run_nobody_admitted_does_not_take_the_trainer(disk: Disk) -> None:
    stages = disk.process()
    with pytest.raises(RunUnknown):
        stages.open(RunId("nobody"))
    assert stages.open(ONE).version == 0


def test_the_run_that_holds_the_trainer_keeps_its_state_when_another_asks(disk: Disk) -> None:
    reached: list[str] = []
    stages = disk.process(reached.append)
    stages.update(ONE, 0)
    with pytest.raises(InstanceBusy, match=r"serves run 'one'; run 'two' must wait"):
        stages.open(TWO)
    stages.publish(ONE, 0)
    assert reached.count("amid an update") == 1
    disk.over = {ONE}
    assert stages.open(TWO).version == 0
