"""The command line: what it accepts, and that every foreseen fault is one clear line and exit code 1."""

import io
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, TerminatedError, TimeoutError
from typer.testing import CliRunner, Result

from psrl.schemas.config import RunConfig
from psrl.schemas.errors import ConfigError
from psrl.schemas.ids import RunId
from psrl.schemas.messages.run import RunPhase, RunStatus, Wait
from psrl.workers.cli.commands import app
from psrl.workers.cli.config_docs import document, leaves
from psrl.workers.cli.follow import InPlace, Lines
from psrl.workers.cli.progress import Rate, View, now_line, step_line
from psrl.workers.cli.runs import cause_of
from psrl.workers.cli.status import as_text, outcome_line, wait_line
from psrl.workers.cli.train import read_config
from tests.support.steps import step_report

ROOT = Path(__file__).parents[4]
GOOD = {
    "model": {"path": "model"},
    "data": {"train_files": ["train.jsonl"]},
    "reward": {"function": "some.module:score"},
    "psrl": {"rollout_n": 4},
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(GOOD))
    return file


def psrl(home: Path, *arguments: str) -> Result:
    return CliRunner(env={"PSRL_HOME": str(home), "COLUMNS": "200"}).invoke(app, list(arguments))


def refused(result: Result) -> str:
    """The one line a failed command prints."""
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.output
    return result.stderr


def test_the_effective_configuration_is_printed_with_every_default(config: Path, tmp_path: Path) -> None:
    result = psrl(tmp_path, "config", "show", str(config), "psrl.staleness=2")
    assert result.exit_code == 0, result.output
    shown = yaml.safe_load(result.stdout)
    assert shown["psrl"]["staleness"] == 2
    assert RunConfig.model_validate(shown).psrl.rollout_n == 4


def test_the_json_form_is_what_the_temporal_command_takes(config: Path, tmp_path: Path) -> None:
    shown = json.loads(psrl(tmp_path, "config", "show", str(config), "--json").stdout)
    assert RunConfig.model_validate(shown["config"]).psrl.rollout_n == 4


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("psrl.stalenes=1", "did you mean 'staleness'?"),
        ("psrl.staleness=-1", "psrl.staleness=-1"),
        ("psrl.rollout_n=1", "psrl.rollout_n=1 with group-normalised advantages"),
        ("psrl.staleness", "is not of the form key=value"),
    ],
)
@pytest.mark.parametrize("command", [("config", "show"), ("train",)])
def test_a_bad_key_or_value_is_refused_before_anything_starts(
    command: tuple[str, ...], override: str, said: str, config: Path, tmp_path: Path
) -> None:
    assert said in refused(psrl(tmp_path / "home", *command, str(config), override))
    assert not (tmp_path / "home").exists()


def test_a_missing_configuration_file_is_named(tmp_path: Path) -> None:
    assert "none.yaml does not exist" in refused(psrl(tmp_path, "train", str(tmp_path / "none.yaml")))


def test_a_run_name_that_cannot_be_an_id_is_refused(config: Path, tmp_path: Path) -> None:
    assert "--run='a b' is not a valid run id" in refused(psrl(tmp_path, "train", str(config), "--run", "a b"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"- 1", "must be a mapping of sections, not a list"),
        (b"\xff\xfe", "cannot be read: 'utf-8' codec"),
        (b"model: 5", "model=5: input should be a section: a mapping of keys"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_bytes(content)
    assert said in refused(psrl(tmp_path, "config", "show", str(file)))


def test_a_directory_is_no_configuration(tmp_path: Path) -> None:
    assert f"{tmp_path} cannot be read: Is a directory" in refused(psrl(tmp_path, "train", str(tmp_path)))


@pytest.mark.parametrize("command", ["status", "up", "down"])
@pytest.mark.parametrize("below", ["", "deeper/home"])
def test_a_home_that_is_a_file_is_refused(command: str, below: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert f"{file} is a file; allowed: a directory" in refused(psrl(file / below, command))


def test_an_empty_home_is_refused_and_does_not_mean_this_directory(tmp_path: Path) -> None:
    assert "--home is empty" in refused(psrl(tmp_path, "--home", "", "status"))


@pytest.mark.parametrize("file", ["stack.json", "settings.json"])
def test_a_file_of_the_stack_that_is_damaged_is_named(file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(b"\xff")
    command = ("status",) if file == "stack.json" else ("up", "--parts", "coordinator")
    assert f"{file} is damaged" in refused(psrl(tmp_path, *command))


def test_a_folder_of_the_stack_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    assert f"{tmp_path / 'logs'}: File exists" in refused(psrl(tmp_path, "up", "--parts", "coordinator"))


@pytest.mark.parametrize("name", ["a/b", "a b", "ü", "x" * 101, "", "..", "a\nb"])
@pytest.mark.parametrize("command", [("status",), ("pause",), ("audit",), ("trajectory", "show")])
def test_what_cannot_be_a_runs_name_is_refused(command: tuple[str, ...], name: str, tmp_path: Path) -> None:
    more = ("0", "0") if "trajectory" in command else ()
    result = psrl(tmp_path, *command, "--", name, *more)
    assert result.exit_code == 2
    assert "is not a valid run id" in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--start-timeout-s", "nan"), "--start-timeout-s=nan; allowed: more than 0"),
        (("--postgres-url", "postgresql://u:p@h:port/db"), "is not a URL; allowed: postgresql://"),
    ],
)
def test_a_value_that_up_cannot_use_is_refused(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert said in refused(psrl(tmp_path, "up", "--parts", "coordinator", *options))


def test_a_file_name_that_cannot_be_a_runs_name_asks_for_one() -> None:
    from psrl.workers.cli.train import base_name

    with pytest.raises(ConfigError, match="'my run' is not a valid run id: name the run with --run"):
        base_name("my run")


def test_a_command_without_an_output_and_in_a_directory_that_is_gone_ends_with_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = 'rmdir "$PWD" && exec "$0" -m psrl.workers.cli.main status >&-'
    environment = {key: value for key, value in os.environ.items() if key != "PSRL_HOME"}
    done = subprocess.run(
        ["sh", "-c", command, sys.executable],
        cwd=gone,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == "error: the working directory has been removed: go to another, or set PSRL_HOME\n"
    assert done.returncode == 1


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("pause", "x"),
        ("resume", "x"),
        ("stop", "x"),
        ("follow", "x"),
        ("report", "x"),
        ("trajectory", "show", "x", "0", "0"),
    ],
)
def test_a_command_that_needs_a_stack_says_how_to_start_one(command: tuple[str, ...], tmp_path: Path) -> None:
    assert "start one with `psrl up`" in refused(psrl(tmp_path, *command))


def test_train_without_a_stack_says_how_to_start_one_when_it_must_not(config: Path, tmp_path: Path) -> None:
    assert "start one with `psrl up`" in refused(psrl(tmp_path, "train", str(config), "--no-up"))


def test_a_part_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert "unknown part 'postgress' (did you mean 'postgres'?)" in refused(
        psrl(tmp_path, "up", "--parts", "postgress")
    )


def test_down_twice_is_fine(tmp_path: Path) -> None:
    for _ in range(2):
        assert psrl(tmp_path / "home", "down").exit_code == 0


def test_paths_become_absolute_because_workers_live_elsewhere(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values, parsed = read_config(config, ["data.val_files=v/*.jsonl", "data.chat_template=t.jinja"])
    assert parsed.model.path == values["model"]["path"] == str(tmp_path / "model")
    assert parsed.data.train_files == (str(tmp_path / "train.jsonl"),)
    assert parsed.data.val_files == (str(tmp_path / "v" / "*.jsonl"),)
    assert parsed.data.chat_template == str(tmp_path / "t.jinja")
    cost_model = "psrl.rollout_coordination.routing_strategy.cost_model_path=cost.json"
    routing = read_config(config, [cost_model])[1].psrl.rollout_coordination.routing_strategy
    assert routing.cost_model_path == str(tmp_path / "cost.json")
    _, from_file = read_config(config, ["reward.function=rewards/judge.py:score"])
    assert from_file.reward.function == f"{tmp_path}/rewards/judge.py:score"
    _, of_a_module = read_config(config, ["reward.function=rewards.judge:score"])
    assert of_a_module.reward.function == "rewards.judge:score"


@pytest.mark.parametrize(
    ("key", "given", "read"),
    [
        (
            "reward",
            {"functions": {"a": {"function": "r/a.py:f"}, "b": {"function": "r.b:f"}}},
            ("HERE/r/a.py:f", "r.b:f"),
        ),
        ("psrl.group_post_process", {"enable": True, "name": "f.py:keep"}, "HERE/f.py:keep"),
        ("psrl.agentic_rl", {"agent_loop": "session", "agent": "a.py:solve"}, "HERE/a.py:solve"),
        ("psrl.agentic_rl", {"agent_loop": "multi_turn", "environment": "e/e.py:E"}, "HERE/e/e.py:E"),
        (
            "psrl.agentic_rl",
            {"agent_loop": "multi_turn", "environment": "tools", "tools": ["t.py:f", "code_runner"]},
            ("HERE/t.py:f", "code_runner"),
        ),
    ],
)
def test_so_do_paths_of_all_code_with_or_without_a_reward(
    key: str, given: dict[str, Any], read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reward is no required section: several may take its place, an environment or an agent may say it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({name: GOOD[name] for name in ("model", "data")}))
    reward = ["reward.function=m:f"] if key == "psrl.group_post_process" else []
    _, parsed = read_config(Path("run.yaml"), ["psrl.rollout_n=4", f"{key}={json.dumps(given)}", *reward])
    agentic = parsed.psrl.agentic_rl
    found = {
        "reward": tuple(one.function for one in parsed.reward.functions.values()),
        "psrl.group_post_process": parsed.psrl.group_post_process.name,
        "psrl.agentic_rl": agentic.tools or agentic.agent or agentic.environment,
    }[key]
    as_expected = json.loads(json.dumps(read).replace("HERE", str(tmp_path)))
    assert found == (tuple(as_expected) if isinstance(as_expected, list) else as_expected)


def test_a_chat_templates_name_stays_a_name(config: Path) -> None:
    assert read_config(config, ["data.chat_template=tool_use"])[1].data.chat_template == "tool_use"


def test_a_path_may_begin_with_a_tilde(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    _, parsed = read_config(config, ["data.train_files=~/train.jsonl", "model.path=$HOME/model"])
    assert parsed.data.train_files == (str(tmp_path / "train.jsonl"),)
    assert parsed.model.path == str(tmp_path / "model")


def test_an_address_stays_one_and_nobodys_home_is_refused(config: Path) -> None:
    _, parsed = read_config(config, ["data.train_files=hf://datasets/someone/data", "model.path=hf://someone/model"])
    assert parsed.data.train_files == ("hf://datasets/someone/data",)
    assert parsed.model.path == "hf://someone/model"
    with pytest.raises(ConfigError, match=r"~nobody of this name/train\.jsonl: nobody of this name has a home"):
        read_config(config, ["data.train_files=~nobody of this name/train.jsonl"])


def test_an_entry_without_a_name_is_no_folder(config: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.train_files: an entry is empty"):
        read_config(config, ['data.train_files=[""]'])


def test_every_key_is_documented_with_a_meaning() -> None:
    text = document()
    for section, field in RunConfig.model_fields.items():
        for key, leaf in leaves(section, field):
            (row,) = [line for line in text.splitlines() if line.startswith(f"| `{key}` |")]
            assert leaf.description or "choice" in row
            assert not row.endswith("|  |"), f"{key} has no meaning"


def test_the_committed_documentation_is_that_of_the_models() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == document(), (
        "run: psrl config docs --out docs/configuration.md"
    )


def test_a_failure_is_told_by_its_cause_not_by_the_layers_around_it() -> None:
    cause = ApplicationError("data.train_files: a.jsonl does not exist", type="DataError")
    # As Temporal carries it: what our error was raised from stays below it and names neither key nor line.
    cause.__cause__ = ApplicationError("Expecting value: line 1 column 1 (char 0)", type="JSONDecodeError")
    layer = ActivityError(
        "Activity task failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="",
        activity_type="admit_run",
        activity_id="1",
        retry_state=RetryState.NON_RETRYABLE_FAILURE,
    )
    layer.__cause__ = cause
    assert cause_of(layer) == "data.train_files: a.jsonl does not exist"


def test_who_raised_because_of_a_timeout_is_heard_and_a_timeout_alone_too() -> None:
    """Field report 1: the role that never came up is named."""
    timeout = TimeoutError("activity ScheduleToStart timeout", type=None, last_heartbeat_details=[])
    raised = ApplicationError("the trainer did not come up within 3 s")
    raised.__cause__ = timeout
    assert cause_of(raised) == "the trainer did not come up within 3 s"
    assert cause_of(timeout) == "activity ScheduleToStart timeout"


def test_a_terminated_run_is_told_as_one() -> None:
    assert cause_of(TerminatedError("by hand")) == "it was terminated in Temporal (by hand)"


def test_a_step_is_told_in_one_line() -> None:
    view = View(occupied=3, live=8, tokens_per_s=1234.4)
    step = step_report(4, reward=0.25, started=0, published=3, waited=1, staleness={0: 1, 1: 3})
    view.recent.append(step)
    view.status = RunStatus(
        run_id=RunId("r"), phase=RunPhase.RUNNING, step=5, total_steps=80, version=5, live_groups=8, occupied_groups=3
    )
    assert step_line(step, view) == (
        "step 5/80  reward 0.250  staleness 0.75  buffers 3/8  tokens/s 1,234  trainer idle 25%  gap 1.0e-06"
    )


def test_a_rate_is_that_of_the_last_seconds_also_between_two_bursts_and_after_a_restart() -> None:
    rate = Rate()
    assert rate.add(0, 100) is None
    assert [rate.add(second, total) for second, total in ((10, 300), (11, 300), (20, 300), (30, 300), (31, 300))] == [
        *(20.0, 200 / 11, 10.0),
        *(0.0, 0.0),
    ]
    assert rate.add(32, 5) is None
    assert rate.add(33, 10) == 5.0


STATUS = RunStatus(
    run_id=RunId("r"),
    phase=RunPhase.RUNNING,
    step=5,
    total_steps=80,
    version=5,
    live_groups=8,
    occupied_groups=3,
    waiting_for="buffer 5: 3 of 8 groups complete",
    validation_accuracy=0.5,
)


def test_between_steps_the_run_says_what_it_waits_for() -> None:
    assert now_line(View(status=STATUS)) == "running  validation 0.500  waiting for buffer 5: 3 of 8 groups complete"


@pytest.mark.parametrize(
    ("deadline_s", "otherwise", "rest"),
    [
        (60, "their leases expire", " · otherwise their leases expire in 48 s"),
        (60, "", " · at most 48 s more"),
        (None, "", ""),
    ],
)
def test_a_wait_says_who_ends_it_and_what_happens_otherwise(deadline_s: int | None, otherwise: str, rest: str) -> None:
    began = datetime(2030, 1, 1, tzinfo=UTC)
    wait = Wait(
        what="the trainer and the instances to be released",
        owner="their hosts",
        since=began,
        deadline=None if deadline_s is None else began + timedelta(seconds=deadline_s),
        otherwise=otherwise,
    )
    line = wait_line(wait.model_dump(mode="json"), began + timedelta(seconds=12))
    assert line == f"the trainer and the instances to be released · their hosts · for 12 s{rest}"


def test_on_a_terminal_the_newest_step_is_redrawn_in_place() -> None:
    written = io.StringIO()
    view = View(occupied=3, live=8)
    view.recent.append(step_report(4))
    with InPlace(Console(file=written, force_terminal=True, width=100)) as shown:
        shown.show(view)
    lines = [line for line in written.getvalue().splitlines() if "step 5/?" in line]
    assert lines
    assert "━" not in lines[-1]


@pytest.mark.parametrize("shown_by", [Lines, InPlace])
def test_what_admission_says_of_the_data_is_told_once(shown_by: type[Lines | InPlace]) -> None:
    written = io.StringIO()
    said = "column 'x' holds what cannot be kept: rewards see null in its place (12 times, first: a.jsonl:7: x=nan)"
    view = View(status=STATUS.model_copy(update={"notes": (said,)}))
    with shown_by(Console(file=written, force_terminal=True, width=200)) as shown:
        shown.show(View())
        shown.show(view)
        shown.show(view)
    assert written.getvalue().count(f"note: {said}") == 1


def test_the_end_of_a_run_is_one_line() -> None:
    from psrl.workers.report.rows import Evaluated
    from psrl.workers.report.summary import summarize
    from tests.unit.workers.report.test_report import rows

    given = rows(
        [step_report(0, reward=0.25), step_report(1, reward=0.75)], [Evaluated(0, 0.2), Evaluated(2, 0.8)], finished=60
    )
    assert outcome_line(summarize(given)) == (
        "run done: reward 0.500 -> 0.500 (each of all 2 steps), validation 0.200 -> 0.800, 2 steps in 60 s"
    )


@pytest.mark.parametrize(
    ("state", "empty", "reserved", "said"),
    [
        ("pending", 3, 1, "12 complete, 1 unfinished, 3 free · filling"),
        ("stuck", 0, 4, "12 complete, 4 unfinished, 0 free · waiting for unfinished groups: 4 of 16"),
        ("ready", 0, 4, "12 complete, 4 unfinished, 0 free · ready to train on"),
        ("ready_with_capacity", 3, 1, "12 complete, 1 unfinished, 3 free · ready to train on"),
    ],
)
def test_a_status_says_what_the_words_of_the_ledger_mean(state: str, empty: int, reserved: int, said: str) -> None:
    buffer = {"buffer": 7, "state": state, "empty": empty, "reserved": reserved, "occupied": 12}
    assert as_text({"buffers": [buffer]}) == f"buffers:\n  buffer 7 · {said}"


def test_an_instance_without_weights_has_no_version_in_the_status() -> None:
    instances = {"rollout-0": "starting v-1", "rollout-1": "serving v1"}
    assert as_text({"instances": instances}).splitlines()[1:] == [
        "  rollout-0: starting, no weights yet",
        "  rollout-1: serving v1",
    ]


LIVE_THREAD = "threading.Thread(target=threading.Event().wait).start()"
"""Stands for the threads of Temporal's client: taking the interpreter down waits for it for ever."""


@pytest.mark.parametrize(
    ("meanwhile", "ending", "status"),
    [
        (LIVE_THREAD, "None", 0),
        (LIVE_THREAD, "SystemExit()", 0),
        (LIVE_THREAD, "SystemExit(130)", 130),
        ("", "SystemExit('told')", 1),
    ],
)
def test_a_command_ends_with_its_status_whatever_its_threads_do(meanwhile: str, ending: str, status: int) -> None:
    code = (
        "import threading\nfrom psrl.workers.cli.boundary import leave\n"
        f"{meanwhile}\nprint('said')\nleave({ending})\nraise {ending}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (status, "said\n"), done.stderr
