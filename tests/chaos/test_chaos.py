"""Kill anything: a short seeded run for every change, the long ones at night (`make chaos`)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from psrl.workers.stack.orphans import stack_processes
from psrl.workers.stack.parts import CPU, GATEWAY, ORCHESTRATOR
from tests.support.scripted_engine import Script

from . import compare
from .big import Wanted, chaos, faults
from .plan import CONVERSING_KINDS, ENGINE, KINDS, RANDOM, ROLLOUT, make_plan
from .points import BY_NAME, OF_EVERY_RUN, POINTS
from .run import Shape
from .site import ALL, Site
from .table import Outcome
from .tokens import Again, sampled_again

REACHED_OFTEN = ("mid-generation", "before-completion", "before-report", "before-publish", "mid-pull")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    place = Site(tmp_path / "home", script=Script(token_s=0.1))
    yield place
    place.down()
    assert stack_processes(place.home) == []


@pytest.mark.integration
@pytest.mark.timeout(400)
async def test_a_run_survives_the_loss_of_each_part_and_of_everything(site: Site) -> None:
    wanted = Wanted(seed=1, injections=len(KINDS) + len(REACHED_OFTEN), minutes=0.5, steps=6, points=REACHED_OFTEN)
    outcome = await chaos(site, wanted)
    assert faults(outcome, wanted) == [], outcome.markdown()
    assert {injection.kind for injection in outcome.injections} == set(KINDS)
    assert {injection.point for injection in outcome.injections} == {RANDOM, *REACHED_OFTEN}


@pytest.mark.integration
@pytest.mark.timeout(900)
async def test_conversations_of_agents_survive_the_loss_of_each_part_that_plays_them(site: Site) -> None:
    points = tuple(point.name for point in POINTS if point.conversing)
    kinds = (GATEWAY, ORCHESTRATOR, CPU, ROLLOUT)
    wanted = Wanted(
        seed=1, agents=True, injections=len(kinds) + len(points), minutes=0.5, steps=3, kinds=kinds, points=points
    )
    outcome = await chaos(site, wanted)
    assert faults(outcome, wanted) == [], outcome.markdown()
    assert {injection.point for injection in outcome.injections} == {RANDOM, *points}


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(2))
async def test_agents_go_on_through_two_hundred_injections(site: Site, seed: int) -> None:
    wanted = Wanted(seed=seed, agents=True, steps=20)
    outcome = await chaos(site, wanted)
    assert faults(outcome, wanted) == [], outcome.markdown()


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(5))
async def test_two_hundred_injections_over_every_part_and_every_point(site: Site, seed: int) -> None:
    site.script.token_s = 0.25
    wanted = Wanted(seed=seed, total_steps=120)
    outcome = await chaos(site, wanted)
    assert faults(outcome, wanted) == [], outcome.markdown()
    assert {injection.point for injection in outcome.injections} == {RANDOM, *OF_EVERY_RUN}


@pytest.mark.nightly
@pytest.mark.timeout(3600)
async def test_killing_everything_in_mid_step_ten_times_changes_nothing_that_was_trained_on(site: Site) -> None:
    found = await compare.cycles(site, 10, Shape(steps=24, prompts=32, epochs=3))
    assert found.differences == ()
    assert found.injections == 10


@pytest.mark.nightly
@pytest.mark.timeout(3600)
async def test_a_disturbed_synchronous_run_ends_with_the_same_weights_bit_for_bit(site: Site) -> None:
    found = await compare.bitwise(site, make_plan(0, 20, 180), 0, Shape(steps=30, eta=0, prompts=32))
    assert found.differences == ()
    assert found.injections >= 10


def test_a_plan_has_every_part_and_every_point_and_is_the_same_for_the_same_seed() -> None:
    plan = make_plan(3, 200, 600)
    planned = [item for lane in plan.values() for item in lane]
    assert len(planned) == 200
    assert {item.kind for item in planned} == set(KINDS)
    assert {item.point for item in planned} == {RANDOM, *OF_EVERY_RUN}
    conversing = make_plan(3, 200, 600, CONVERSING_KINDS, tuple(BY_NAME))
    assert {item.point for lane in conversing.values() for item in lane} == {RANDOM, *BY_NAME}
    assert plan == make_plan(3, 200, 600)
    assert plan != make_plan(4, 200, 600)
    assert {ROLLOUT, ENGINE, ALL} <= {item.kind for item in planned}


def test_lost_groups_missing_injections_and_repeated_tokens_are_faults() -> None:
    again = [Again("000001/0.0", "rollout-0", 1.0, 2.0, 9)]
    outcome = Outcome(0, [], 1.0, 3, 16, {"trained": 4, "failed": 1}, 100, again, 8, "L2: trained twice")
    assert len(faults(outcome, Wanted())) == 5
    stayed = Outcome(0, [], 1.0, 40, 16, {"trained": 4}, 100, [], 8, "clean", {"rollout-0": 2, "rollout-1": 0})
    assert faults(stayed, Wanted(injections=0, total_steps=40)) == ["never quarantined: ['rollout-1']"]
    kept = Outcome(0, [], 1.0, 40, 16, {"trained": 4}, 100, [], 8, "clean")
    assert faults(kept, Wanted(injections=0)) == []


def test_tokens_that_a_later_call_samples_again_are_counted_per_turn(tmp_path: Path) -> None:
    folder = tmp_path / "chaos" / "sampled"
    folder.mkdir(parents=True)
    (folder / "rollout-0-11").write_text("1.0 000001/0.0 1 0 5\n2.0 000001/0.0 1 5 3\n1.5 000001/1.0 1 0 4\n")
    (folder / "rollout-1-12").write_text("9.0 000001/0.0 1000001 6 10\n9.0 000001/1.0 1000001 4 1\n")
    total, again = sampled_again(tmp_path)
    assert total == 23
    assert [(item.turn, item.instance, item.tokens) for item in again] == [("000001/0.0", "rollout-0", 2)]
