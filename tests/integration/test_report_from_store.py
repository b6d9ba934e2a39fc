"""The report and the trajectory view, from a real store."""

import json
from pathlib import Path

import pytest
from sqlalchemy import Engine, update
from typer.testing import CliRunner, Result

from psrl.activities.store.branches import Fork
from psrl.schemas.errors import RunUnknown
from psrl.schemas.messages.episodes import EpisodeOutcome, TerminateReason
from psrl.schemas.stack import Stack
from psrl.schemas.tables import Trajectory
from psrl.workers.cli import trajectory
from psrl.workers.cli.commands import app
from psrl.workers.report.rows import read_rows
from psrl.workers.report.summary import summarize
from tests.support.episodes import Branch, Said, put_episode
from tests.support.runs import RUN
from tests.support.steps import EPOCH, step_report
from tests.support.store_rows import add_evaluation, add_run, add_step, add_trajectory

pytestmark = pytest.mark.integration


@pytest.fixture
def run(engine: Engine) -> str:
    """Two steps; engines generate from second 0 to 4 and from 5 to 12, the trainer works from 3 to 6 and 10 to 14."""
    add_run(engine, "demo")
    add_step(engine, step_report(0, run="demo", reward=0.25, started=3, published=6, waited=3))
    add_step(engine, step_report(1, run="demo", reward=0.75, started=10, published=14, staleness={0: 1, 1: 3}))
    add_evaluation(engine, "demo", 0, 0.2)
    add_evaluation(engine, "demo", 2, 0.6)
    add_trajectory(engine, "demo", "000000", [(0, 0, 3, [5]), (0, 2, 4, [6, 7])])
    add_trajectory(engine, "demo", "000001", [(1, 5, 12, [8])], buffer=1)
    return "demo"


def psrl(stack: Stack, *arguments: str) -> Result:
    return CliRunner(env={"PSRL_HOME": str(stack.home)}).invoke(app, list(arguments))


def test_the_database_merges_the_times_of_generation(engine: Engine, run: str) -> None:
    rows = read_rows(engine, run)
    start = EPOCH.timestamp()
    assert rows.generating == ((start, start + 4), (start + 5, start + 12))
    summary = summarize(rows)
    assert summary.overlap_share == pytest.approx((1 + 1 + 2) / 7)
    assert (summary.trajectories, summary.staleness_histogram) == (2, {0: 5, 1: 3})
    assert summary.wall_s == pytest.approx(60)


def test_an_unknown_run_is_refused_with_the_nearest_name(engine: Engine, run: str) -> None:
    with pytest.raises(RunUnknown, match=r"no run 'dmo' in the store \(did you mean 'demo'\?\); known: demo"):
        read_rows(engine, "dmo")


def test_the_report_command_prints_the_numbers_as_data(stack: Stack, run: str) -> None:
    result = psrl(stack, "report", run, "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert (data["reward_first"], data["validation_before"], data["validation_after"]) == (0.5, 0.2, 0.6)
    assert data["staleness_histogram"] == {"0": 5, "1": 3}
    assert {"overlap_share", "wall_s", "time_split", "steps", "trajectories", "reward_last"} <= set(data)


def test_the_report_command_writes_page_and_tensorboard_events(stack: Stack, run: str, tmp_path: Path) -> None:
    result = psrl(stack, "report", run, "--out", str(tmp_path / "r.html"), "--tensorboard", str(tmp_path / "tb"))
    assert result.exit_code == 0, result.output
    assert "plotly" in (tmp_path / "r.html").read_text()
    assert list((tmp_path / "tb" / run).glob("events.out.tfevents.*"))


def test_a_store_that_does_not_answer_is_told_with_what_to_do(stack: Stack) -> None:
    gone = stack.model_copy(update={"postgres_url": "postgresql+psycopg://psrl@127.0.0.1:9/x"})
    (stack.home / "stack.json").write_text(gone.model_dump_json())
    result = psrl(stack, "report", "demo")
    assert result.exit_code == 1
    assert "psrl@127.0.0.1:9/x did not answer: connection refused. `psrl up` starts one" in result.stderr


class Letters:
    """A tokenizer that needs no model."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        return "".join(chr(ord("a") + one) for one in token_ids)


def test_a_trajectory_is_shown_with_its_segments_versions_text_and_reward(
    stack: Stack, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trajectory, "load_tokenizer", lambda path, trust: Letters())
    result = psrl(stack, "trajectory", "show", run, "0", "0")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "demo/group/000000 trajectory 0: scored, reward 1, tag v0, trained in buffer 0",
        "prompt: 2+3=",
        "ground truth: 5",
        "turn 0 segment 0: v0 on rollout-0, 1 tokens, mean log-prob -0.500, 3.00 s, to be continued",
        "  'f'",
        "turn 0 segment 1: v0 on rollout-1, 2 tokens, mean log-prob -0.500, 2.00 s, stop",
        "  'gh'",
    ]


def test_a_conversation_is_shown_with_what_it_shares_and_where_others_left_it(
    stack: Stack, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trajectory, "load_tokenizer", lambda path, trust: Letters())
    add_run(engine, RUN)
    add_trajectory(engine, RUN, "000000", [(0, 0, 3, [5])])
    middle = Branch(1, [Said([8], [9]), Said([10], [11, 12])], Fork(0, 0))
    last = Branch(2, [Said([13], [14], end=None)], Fork(1, 0))
    outcome = EpisodeOutcome(ended=TerminateReason.FINISHED, reward=0.5, info={"steps": 3, "answer": "5"})
    with engine.begin() as connection:
        put_episode(connection, "000000", [middle, last], outcome=None)
        first = update(Trajectory).where(Trajectory.index == 0)
        connection.execute(first.values(outcome=outcome.model_dump(mode="json")))
    result = psrl(stack, "trajectory", "show", RUN, "0", "1")
    assert result.exit_code == 0, result.output
    assert [line.replace("0.00 s", "3.00 s") for line in result.stdout.splitlines()] == [
        "run-1/group/000000 trajectory 1: finished, reward none, tag v0, not trained on",
        "prompt: 2+3=",
        "ground truth: 5",
        "one of the branches 0, 1, 2 of its episode",
        "the episode ended as finished, which it says is worth 0.5",
        "  steps 3, answer '5'",
        "trajectory 0 turn 0 segment 0: v0 on rollout-0, 1 tokens, mean log-prob -0.500, 3.00 s, stop",
        "  'f'",
        "turn 0 segment 0: environment, 1 tokens",
        "  'i'",
        "turn 0 segment 1: v0 on rollout-0, 1 tokens, mean log-prob -0.141, 3.00 s, stop",
        "  'j'",
        "trajectory 2 leaves it here",
        "turn 1 segment 0: environment, 1 tokens",
        "  'k'",
        "turn 1 segment 1: v0 on rollout-0, 1 tokens, mean log-prob -0.172, 3.00 s, to be continued",
        "  'l'",
        "turn 1 segment 2: v0 on rollout-0, 1 tokens, mean log-prob -0.188, 3.00 s, KV cache kept, stop",
        "  'm'",
    ]
    shown = psrl(stack, "trajectory", "show", RUN, "0", "0").stdout.splitlines()
    assert shown[-1] == "trajectory 1 leaves it here"


@pytest.mark.parametrize(
    ("group", "index", "said"),
    [("7", "0", "no group '000007'; its groups go from 000000 to 000001"), ("0", "3", "no trajectory 3; allowed: 0")],
)
def test_a_trajectory_that_does_not_exist_is_refused_with_what_there_is(
    stack: Stack, run: str, group: str, index: str, said: str
) -> None:
    result = psrl(stack, "trajectory", "show", run, group, index)
    assert result.exit_code == 1
    assert said in result.stderr
