"""The commands against a real Temporal server and store, with a scripted run in place of the real workflow."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from temporalio import workflow
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from typer.testing import CliRunner, Result

from psrl.activities.store.connections import sync_store
from psrl.schemas.ids import ORCHESTRATOR_QUEUE, RunId
from psrl.schemas.messages.run import RunPhase, RunResult, RunStatus, StartRun, StopRun, Wait
from psrl.schemas.stack import STACK_FILE, Stack
from psrl.workers.cli.commands import app
from psrl.workers.coordinator.server import start_server
from psrl.workers.process import connect
from tests.support.steps import step_report
from tests.support.store_rows import add_run, add_step
from tests.support.temporal import temporal_binary

pytestmark = pytest.mark.integration


@workflow.defn(name="TrainingRun")
class ScriptedRun:
    """Runs until `stop`; of the project "broken" it fails at once, of "slow" it is stopping until `release`."""

    def __init__(self) -> None:
        self._phase = RunPhase.RUNNING
        self._released = False

    @workflow.run
    async def run(self, start: StartRun) -> RunResult:
        project = start.config.get("trainer", {}).get("project_name")
        if project == "broken":
            raise ApplicationError("data.train_files: nothing usable", type="DataError", non_retryable=True)
        await workflow.wait_condition(lambda: self._phase is RunPhase.STOPPING)
        await workflow.wait_condition(lambda: self._released or project != "slow")
        self._phase = RunPhase.STOPPED
        return RunResult(phase=self._phase, steps=1, version=1, reward_last=0.5)

    @workflow.signal
    def pause(self) -> None:
        if self._phase is not RunPhase.STOPPING:
            self._phase = RunPhase.PAUSED

    @workflow.signal
    def resume(self) -> None:
        if self._phase is not RunPhase.STOPPING:
            self._phase = RunPhase.RUNNING

    @workflow.signal
    def release(self) -> None:
        self._released = True

    @workflow.signal
    def stop(self, request: StopRun = StopRun()) -> None:  # noqa: B008
        self._phase = RunPhase.STOPPING

    @workflow.query
    def status(self) -> RunStatus:
        run_id = RunId(workflow.info().workflow_id)
        return RunStatus(
            run_id=run_id,
            phase=self._phase,
            step=1,
            total_steps=2,
            version=1,
            live_groups=8,
            occupied_groups=3,
            waiting_for="a checkpoint" if self._phase is RunPhase.STOPPING else "",
            waits=(Wait(what="step 1 to be trained", owner="the trainer", since=workflow.now()),),
        )

    @workflow.query
    def ledger(self) -> list[dict[str, Any]]:
        return [{"buffer": 1, "state": "stuck", "empty": 0, "reserved": 5, "occupied": 3}]


@contextmanager
def background(stack: Stack) -> Iterator[Stack]:
    """A coordinator and a worker for the scripted run, on an event loop of their own: commands run one themselves."""
    ready: Future[int] = Future()
    stop: list[Any] = []

    async def serve() -> None:
        ended = asyncio.Event()
        stop.extend([asyncio.get_running_loop(), ended])
        server, port = await start_server("127.0.0.1:0")
        client = await connect(stack.temporal_address, stack.namespace)
        worker = Worker(
            client,
            task_queue=ORCHESTRATOR_QUEUE,
            workflows=[ScriptedRun],
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        async with worker:
            ready.set_result(port)
            await ended.wait()
        await server.stop(None)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        found = stack.model_copy(
            update={"coordinator_address": f"127.0.0.1:{ready.result(30)}", "temporal_ui": "http://127.0.0.1:8233"}
        )
        (stack.home / STACK_FILE).write_text(found.model_dump_json())
        yield found
    finally:
        stop[0].call_soon_threadsafe(stop[1].set)
        thread.join(30)


@pytest.fixture
def running(stack: Stack) -> Iterator[Stack]:
    with background(stack) as found:
        yield found


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "quick.yaml"
    values = {
        "model": {"path": "m"},
        "data": {"train_files": ["t.jsonl"]},
        "reward": {"function": "a:b"},
        "psrl": {"rollout_n": 4},
    }
    file.write_text(yaml.safe_dump(values))
    return file


def psrl(stack: Stack, *arguments: str) -> Result:
    return CliRunner(env={"PSRL_HOME": str(stack.home)}).invoke(app, list(arguments))


def said(result: Result) -> str:
    assert result.exit_code == 0, result.output + result.stderr
    return result.stdout


def test_a_run_is_started_steered_and_followed_to_its_end(running: Stack, config: Path) -> None:
    assert "run life started: http://127.0.0.1:8233/namespaces/default/workflows/life" in said(
        psrl(running, "train", str(config), "--run", "life", "--no-up", "--detach")
    )
    # What the real workflow's activities would have written.
    engine = sync_store(running.postgres_url)
    add_run(engine, "life", phase="stopped")
    add_step(engine, step_report(0, run="life", reward=0.25, published=3, waited=1))
    engine.dispose()
    status = json.loads(said(psrl(running, "status", "life", "--json")))
    assert (status["phase"], status["buffers"][0]["occupied"], status["buffers"][0]["state"]) == ("running", 3, "stuck")
    assert "waiting for unfinished groups: 5 of 8" in said(psrl(running, "status", "life"))
    assert "  step 1 to be trained · the trainer · for " in said(psrl(running, "status", "life"))
    assert "psrl resume life" in said(psrl(running, "pause", "life"))
    assert "phase: paused" in said(psrl(running, "status", "life"))
    said(psrl(running, "resume", "life"))
    assert "phase: running" in said(psrl(running, "status", "life"))
    said(psrl(running, "stop", "life"))
    told = said(psrl(running, "follow", "life"))
    assert "step 1/2  reward 0.250  staleness 0.00  buffers 3/8" in told
    assert "life stopped: reward 0.250 -> 0.250 (of its only step), validation – -> –, 1 steps in 60 s" in told
    assert f"report: {running.home}/reports/life.html" in told
    assert (running.home / "reports" / "life.html").exists()
    assert "phase: stopped" in said(psrl(running, "status", "life"))
    assert "life: stopped, 2 steps" in said(psrl(running, "status"))


def test_the_command_and_its_children_end_with_its_run(running: Stack, config: Path) -> None:
    """A script that does not exit. Here as a process of its own, as people start it."""
    command = [sys.executable, "-m", "psrl.workers.cli.main", "train", str(config), "--run", "ends", "--no-up"]
    environment = os.environ | {"PSRL_HOME": str(running.home)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "run ends started" in process.stdout.readline()
        engine = sync_store(running.postgres_url)
        add_run(engine, "ends", phase="stopped")
        add_step(engine, step_report(0, run="ends", reward=0.25, published=3, waited=1))
        engine.dispose()
        children = psutil.Process(process.pid).children(recursive=True)
        said(psrl(running, "stop", "ends"))
        told, _ = process.communicate(timeout=60)
    assert (process.returncode, "ends stopped: reward" in told) == (0, True)
    assert [child for child in children if child.is_running()] == []


def test_a_run_that_was_stopped_is_resumed_and_one_that_is_done_is_not(running: Stack, config: Path) -> None:
    said(psrl(running, "train", str(config), "--run", "long", "--no-up", "--detach"))
    assert (
        "--accept-changed-data: run 'long' is running with the data"
        in psrl(running, "resume", "long", "--accept-changed-data").stderr
    )
    assert "`psrl resume long` resumes it later" in said(psrl(running, "stop", "long", "--now"))
    engine = sync_store(running.postgres_url)
    add_run(engine, "long", phase="stopped")
    add_run(engine, "over", phase="done")
    engine.dispose()
    assert "`psrl resume long` resumes it" in said(psrl(running, "follow", "long"))
    assert "run long resumed at step 0" in said(psrl(running, "resume", "long"))
    said(psrl(running, "stop", "long"))
    assert "run 'over' is done: all its 0 steps were trained" in psrl(running, "resume", "over").stderr
    refused = psrl(running, "resume", "lang")
    assert refused.exit_code == 1
    assert "no run 'lang' is in the store (did you mean 'long'?); there are: long, over" in refused.stderr


@pytest.fixture
def stopping(running: Stack, config: Path) -> str:
    """A run that has been asked to stop and is not done with it."""
    name = f"slow-{uuid.uuid4().hex[:8]}"
    said(psrl(running, "train", str(config), "trainer.project_name=slow", "--run", name, "--no-up", "--detach"))
    engine = sync_store(running.postgres_url)
    add_run(engine, name, phase="stopped")
    engine.dispose()
    said(psrl(running, "stop", name))
    return name


def release(stack: Stack, run: str) -> None:
    command = [temporal_binary(), "workflow", "signal", "--workflow-id", run, "--name", "release"]
    subprocess.run([*command, "--address", stack.temporal_address], capture_output=True, timeout=60, check=True)


def test_resume_waits_for_a_run_that_is_still_stopping_and_then_resumes_it(running: Stack, stopping: str) -> None:
    command = [sys.executable, "-m", "psrl.workers.cli.main", "resume", stopping]
    environment = os.environ | {"PSRL_HOME": str(running.home)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        waiting = process.stdout.readline()
        release(running, stopping)
        told, _ = process.communicate(timeout=60)
    assert waiting == f"run {stopping} is stopping, waiting for it to end (a checkpoint)\n"
    assert (process.returncode, told) == (0, f"run {stopping} resumed at step 0; `psrl follow {stopping}` shows it\n")
    assert "phase: running" in said(psrl(running, "status", stopping))
    said(psrl(running, "stop", stopping))


def test_a_run_that_is_still_stopping_is_neither_paused_nor_started_again(
    running: Stack, stopping: str, config: Path
) -> None:
    refused = psrl(running, "pause", stopping)
    assert refused.exit_code == 1
    assert f"{stopping} is ending and cannot be paused; `psrl resume {stopping}` waits for its end" in refused.stderr
    refused = psrl(running, "train", str(config), "--run", stopping, "--no-up")
    assert f"'{stopping}' is still ending: `psrl resume {stopping}` waits for its end and resumes it" in refused.stderr
    said(psrl(running, "stop", stopping, "--now"))
    release(running, stopping)
    said(psrl(running, "follow", stopping))


def test_the_reason_of_a_run_that_was_refused_is_in_its_status(running: Stack, config: Path) -> None:
    psrl(running, "train", str(config), "trainer.project_name=broken", "--run", "no", "--no-up")
    shown = said(psrl(running, "status", "no"))
    assert "phase: refused" in shown
    assert "reason: data.train_files: nothing usable" in shown
    assert "no run 'never'" in psrl(running, "status", "never").stderr


def test_a_run_that_fails_is_told_by_its_cause(running: Stack, config: Path) -> None:
    result = psrl(running, "train", str(config), "trainer.project_name=broken", "--run", "bad", "--no-up")
    assert result.exit_code == 1
    assert result.stderr.strip() == "error: run bad failed: data.train_files: nothing usable"


def test_a_run_that_failed_after_it_was_admitted_is_told_how_it_goes_on(running: Stack, config: Path) -> None:
    engine = sync_store(running.postgres_url)
    add_run(engine, "late", phase="failed")
    engine.dispose()
    command = [temporal_binary(), "workflow", "start", "--type", "TrainingRun", "--task-queue", "psrl"]
    values = json.dumps({"config": {"trainer": {"project_name": "broken"}}})
    command += ["--workflow-id", "late", "--input", values, "--address", running.temporal_address]
    subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert "once that is fixed, `psrl resume late` resumes it" in psrl(running, "follow", "late").stderr


def test_a_run_that_was_terminated_in_temporal_is_not_shown_as_alive(running: Stack, config: Path) -> None:
    said(psrl(running, "train", str(config), "--run", "cut", "--no-up", "--detach"))
    engine = sync_store(running.postgres_url)
    add_run(engine, "cut", phase="running", finished=None)
    engine.dispose()
    assert "note:" not in said(psrl(running, "status", "cut"))
    assert "  cut: running, 2 steps" in said(psrl(running, "status"))
    command = [temporal_binary(), "workflow", "terminate", "--workflow-id", "cut", "--reason", "by hand"]
    subprocess.run([*command, "--address", running.temporal_address], capture_output=True, timeout=60, check=True)
    assert "`psrl resume cut` resumes it" in said(psrl(running, "status", "cut"))
    listed = "  cut: terminated in Temporal (last seen running; `psrl resume cut` resumes it), 2 steps"
    assert listed in said(psrl(running, "status"))
    assert "run cut failed: it was terminated in Temporal (by hand)" in psrl(running, "follow", "cut").stderr


def test_a_detached_run_that_is_refused_ends_the_command_with_the_reason(running: Stack, config: Path) -> None:
    refused = psrl(running, "train", str(config), "trainer.project_name=broken", "--run", "gone", "--no-up", "-d")
    assert refused.exit_code == 1
    assert refused.stderr.strip() == "error: data.train_files: nothing usable"


def test_a_run_that_was_refused_may_be_started_again_under_its_name(running: Stack, config: Path) -> None:
    psrl(running, "train", str(config), "trainer.project_name=broken", "--run", "again", "--no-up")
    said(psrl(running, "train", str(config), "--run", "again", "--no-up", "--detach"))
    said(psrl(running, "stop", "again"))


def test_a_name_that_is_taken_is_refused_and_without_a_name_the_next_free_one_is_used(
    running: Stack, config: Path
) -> None:
    assert "run quick started" in said(psrl(running, "train", str(config), "--no-up", "--detach"))
    refused = psrl(running, "train", str(config), "--run", "quick", "--no-up")
    assert refused.exit_code == 1
    assert "run 'quick' exists already: choose another name with --run" in refused.stderr
    assert "run quick-2 started" in said(psrl(running, "train", str(config), "--no-up", "--detach"))
    for name in ("quick", "quick-2"):
        said(psrl(running, "stop", name))


def test_signals_to_a_run_that_is_not_there_name_those_that_are(running: Stack, config: Path) -> None:
    refused = psrl(running, "pause", "nosuch")
    assert refused.exit_code == 1
    assert "no run 'nosuch' is running" in refused.stderr


def test_more_instances_than_the_stack_has_are_refused(running: Stack, config: Path) -> None:
    refused = psrl(running, "train", str(config), "psrl.deployment.n_rollout_instances=3", "--no-up")
    assert refused.exit_code == 1
    assert "psrl.deployment.n_rollout_instances=3, but the stack" in refused.stderr


def test_the_plain_temporal_command_does_the_same(running: Stack, config: Path) -> None:
    def temporal(*arguments: str) -> str:
        command = [temporal_binary(), "workflow", *arguments, "--address", running.temporal_address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    shown = said(psrl(running, "config", "show", str(config), "--json"))
    temporal(
        "start", "--type", "TrainingRun", "--task-queue", "psrl", "--workflow-id", "plain", "--input", shown.strip()
    )
    temporal("signal", "--workflow-id", "plain", "--name", "pause")
    answer = temporal("query", "--workflow-id", "plain", "--type", "status", "-o", "json")
    assert '"paused"' in answer
    temporal("signal", "--workflow-id", "plain", "--name", "stop")
