"""The numbers of a report, its page and its TensorBoard events, from made-up rows."""

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from psrl.schemas.messages.run import StepReport
from psrl.workers.report.page import facts_of, render, write_page
from psrl.workers.report.rows import Evaluated, Interval, RunRows
from psrl.workers.report.summary import intersection_s, summarize
from psrl.workers.report.tensorboard import write_events
from tests.support.steps import EPOCH, at, step_report


def rows(
    steps: Sequence[StepReport] = (),
    evaluations: Sequence[Evaluated] = (),
    generating: Sequence[Interval] = (),
    finished: float | None = None,
) -> RunRows:
    shift = EPOCH.timestamp()
    return RunRows(
        run_id="run",
        phase="done",
        reason="",
        project="psrl",
        total_steps=30,
        created_at=EPOCH,
        finished_at=None if finished is None else at(finished),
        steps=tuple(steps),
        evaluations=tuple(evaluations),
        trained_trajectories=16 * len(steps),
        generating=tuple((shift + begin, shift + end) for begin, end in generating),
    )


def test_rewards_are_the_means_of_the_first_and_last_ten_steps() -> None:
    summary = summarize(rows([step_report(i, reward=i) for i in range(30)]))
    assert summary.reward_first == pytest.approx(4.5)
    assert summary.reward_last == pytest.approx(24.5)
    assert (summary.steps, summary.trajectories, summary.tokens) == (30, 480, 3000)


def test_a_run_without_steps_has_no_numbers_rather_than_zeros() -> None:
    summary = summarize(rows(finished=5))
    assert summary.reward_first is None
    assert summary.overlap_share is None
    assert summary.trainer_idle_share is None
    assert summary.time_split.start_s == pytest.approx(5)


def test_validation_before_and_after_are_the_first_and_last_measured() -> None:
    measured = [Evaluated(0, 0.2), Evaluated(5, None), Evaluated(10, 0.7)]
    summary = summarize(rows(evaluations=measured))
    assert (summary.validation_before, summary.validation_after) == (0.2, 0.7)
    assert summarize(rows(evaluations=measured[:1])).validation_after is None


def test_a_run_that_was_validated_only_late_has_a_validation_after_and_none_before() -> None:
    summary = summarize(rows(evaluations=[Evaluated(3, 0.1), Evaluated(5, 0.0)]))
    assert (summary.validation_before, summary.validation_after) == (None, 0.0)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (0, "no step"),
        (1, "of its only step"),
        (2, "each of all 2 steps"),
        (10, "each of all 10 steps"),
        (11, "first and last ten of 11 steps"),
        (19, "first and last ten of 19 steps"),
        (20, "first and last ten steps"),
    ],
)
def test_a_report_says_which_steps_its_rewards_are_means_of(steps: int, said: str) -> None:
    summary = summarize(rows([step_report(i, reward=i) for i in range(steps)]))
    assert facts_of(summary)[0][0] == f"reward, {said}"


def test_the_staleness_histogram_sums_the_groups_of_all_steps() -> None:
    summary = summarize(rows([step_report(0), step_report(1, staleness={0: 1, 1: 3})]))
    assert summary.staleness_histogram == {0: 5, 1: 3}


def test_the_staleness_of_tokens_is_weighted_by_how_many_each_step_trained() -> None:
    steps = [
        step_report(0, tokens=300, token_staleness_mean=0.0, token_staleness_min=0),
        step_report(1, tokens=100, token_staleness_mean=2.0, token_staleness_min=1),
        step_report(2, tokens=900),
    ]
    summary = summarize(rows(steps))
    assert (summary.token_staleness_min, summary.token_staleness_mean) == (0, pytest.approx(0.5))


def test_depth_waiting_groups_and_waiting_trainer_are_three_measures() -> None:
    steps = [
        step_report(0, depth=4, waited=3, group_waited_mean_s=1.0, group_waited_max_s=5.0),
        step_report(1, depth=8, waited=1, group_waited_mean_s=2.0, group_waited_max_s=2.5),
    ]
    queue = summarize(rows(steps)).queue
    assert queue.depth_mean == pytest.approx(6)
    assert (queue.group_waited_mean_s, queue.group_waited_max_s) == pytest.approx((1.5, 5))
    assert (queue.trainer_waited_mean_s, queue.trainer_waited_max_s) == pytest.approx((2, 3))
    facts = dict(facts_of(summarize(rows(steps))))
    assert facts["complete groups when a batch was taken, mean"] == "6.0"
    assert facts["a complete group waited for its batch, mean and longest"] == "1.5 s, 5.0 s"
    assert facts["the trainer waited for a batch, mean and longest"] == "2.0 s, 3.0 s"


def test_what_older_steps_did_not_measure_is_missing_and_not_zero() -> None:
    summary = summarize(rows([step_report(0)]))
    assert (summary.token_staleness_min, summary.token_staleness_mean) == (None, None)
    assert (summary.queue.depth_mean, summary.queue.group_waited_mean_s, summary.queue.group_waited_max_s) == (
        None,
    ) * 3
    assert dict(facts_of(summary))["staleness per token, mean and least"] == "–, –"


def test_overlap_is_the_share_of_training_time_in_which_an_engine_generated() -> None:
    steps = [step_report(0, started=10, published=14), step_report(1, started=20, published=24)]
    summary = summarize(rows(steps, generating=[(0, 11), (13, 22)]))
    assert summary.overlap_share == pytest.approx((1 + 1 + 2) / 8)


@pytest.mark.parametrize(
    ("left", "right", "seconds"),
    [
        ([], [(0, 1)], 0),
        ([(0, 1)], [(1, 2)], 0),
        ([(0, 10)], [(1, 2), (3, 5)], 3),
        ([(0, 2), (3, 9)], [(1, 4), (8, 20)], 3),
    ],
)
def test_intersections_of_disjoint_intervals(left: list[Interval], right: list[Interval], seconds: float) -> None:
    assert intersection_s(left, right) == intersection_s(right, left) == seconds


def test_the_trainers_times_add_up_to_the_wall_time() -> None:
    steps = [
        step_report(0, started=10, published=14, waited=6, publish_s=1),
        step_report(1, started=15, published=18, waited=0.5, publish_s=1),
    ]
    summary = summarize(rows(steps, generating=[(5, 9)], finished=20))
    split = summary.time_split
    assert (split.start_s, split.wait_s, split.train_s, split.publish_s) == pytest.approx((4, 6.5, 5, 2))
    assert split.start_s + split.wait_s + split.train_s + split.publish_s + split.other_s == pytest.approx(20)
    assert split.generate_s == pytest.approx(4)
    assert summary.trainer_idle_share == pytest.approx(6.5 / 13.5)


def test_a_run_in_progress_lasts_until_its_newest_sign_of_life() -> None:
    assert summarize(rows([step_report(0, published=3)], generating=[(0, 7)])).wall_s == pytest.approx(7)


def test_the_page_holds_every_plot_and_needs_no_network(tmp_path: Path) -> None:
    measured = {"token_staleness_mean": 0.5, "group_waited_mean_s": 1.0}
    steps = [step_report(i, depth=5, **measured) for i in range(3)]
    given = rows(steps, [Evaluated(0, 0.1), Evaluated(3, 0.4)], [(0, 1)])
    file = tmp_path / "reports" / "run.html"
    write_page(given, summarize(given), file)
    page = file.read_text()
    titles = ("Reward", "Validation", "Staleness of the trained groups", "Staleness of the trained tokens")
    titles += ("Response length", "Log-prob gap", "Time per step", "Waiting between", "Complete groups when")
    for title in titles:
        assert title in page
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=[\"']?https?:", page)


def test_what_is_no_file_is_written_to_and_not_replaced_by_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    given = rows([step_report(0)])
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        write_page(given, summarize(given), pipe)
        assert read.result(30).endswith("</html>")
    assert pipe.is_fifo()


def test_the_page_plots_what_the_reward_returned_beside_the_reward(tmp_path: Path) -> None:
    plain, told = rows([step_report(0)]), rows([step_report(0), step_report(1, reward_metrics={"acc": 0.5})])
    assert "Reward metrics" not in render(plain, summarize(plain))
    assert "Reward metrics" in render(told, summarize(told))


def test_a_page_of_a_run_without_steps_can_be_written(tmp_path: Path) -> None:
    given = rows()
    write_page(given, summarize(given), tmp_path / "run.html")


def test_tensorboard_reads_back_what_was_written_and_an_export_replaces_the_one_before(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    metrics = {"acc": 0.5, "style": 2.0}
    given = rows(
        [step_report(0, reward=0.25), step_report(1, reward=0.75, reward_metrics=metrics)], [Evaluated(0, 0.5)]
    )
    write_events(given, tmp_path)
    count = write_events(given, tmp_path)
    (file,) = (tmp_path / "run").iterdir()
    values = [
        (value.tag, event.step, value) for event in EventFileLoader(str(file)).Load() for value in event.summary.value
    ]
    assert len(values) == count
    found = {(tag, step): value.tensor.float_val[0] for tag, step, value in values}
    assert found["batch/reward_mean", 1] == pytest.approx(0.75)
    assert found["validation/accuracy", 0] == pytest.approx(0.5)
    assert {tag: value for (tag, _), value in found.items() if tag.startswith("reward/")} == {
        "reward/acc": 0.5,
        "reward/style": 2.0,
    }
