"""`python -m tests.chaos`: disturb one run on a real stack of its own and print the recovery table.

With `--cycles N` or `--bitwise`: a run that is disturbed beside one that is not, and what differs between them.
"""

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from psrl.workers.stack.settings import SETTINGS_FILE
from tests.support.scripted_engine import Script

from . import compare
from .big import Wanted, chaos, faults
from .plan import CONVERSING_KINDS, KINDS, make_plan
from .points import BY_NAME, OF_EVERY_RUN
from .run import BATCH_GROUPS, Shape
from .site import SCRIPTED, VLLM, Site

TOKEN_S = 0.25
"""Slow enough that some trajectory is always in flight, and that two cores do all of it."""
HOME = Path("/tmp/psrl-chaos")
PROMPTS = 32
"""Of the compared runs: few, so that they have epochs."""


def names(allowed: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        given = tuple(part for part in text.split(",") if part)
        for name in given:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r}; allowed: {', '.join(allowed)}")
        return given

    return parse


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--injections", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=14.0, help="over which the injections are spread")
    parser.add_argument("--steps", type=int, default=40, help="at least; of compared runs exactly")
    parser.add_argument("--total-steps", type=int, help="the run must reach this step by itself, after the plan")
    parser.add_argument("--restart-budget", type=int, default=2, help="of an instance (default: %(default)s)")
    parser.add_argument("--agents", action="store_true", help="groups are played by agents, over the gateway")
    parser.add_argument("--parts", type=names(CONVERSING_KINDS), default=())
    parser.add_argument("--points", type=names(tuple(BY_NAME)), default=())
    parser.add_argument("--engine", choices=("scripted", "vllm"), default="scripted")
    parser.add_argument("--token-s", type=float, default=TOKEN_S, help="pause of the scripted engine before a token")
    parser.add_argument("--cycles", type=int, help="kill everything in mid-step so often, compare with a calm run")
    parser.add_argument("--bitwise", action="store_true", help="eta 0, compare with a calm run bit for bit")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.add_argument("--home", type=Path, default=HOME, help="of the stack; made anew (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    given = options()
    engine = SCRIPTED if given.engine == "scripted" else VLLM
    site = Site(given.home.absolute(), engine, Script(token_s=given.token_s), say=lambda line: print(line, flush=True))
    if (site.home / SETTINGS_FILE).exists():
        site.down()
        shutil.rmtree(site.home)
    try:
        broken = compared(site, given) if given.cycles or given.bitwise else disturbed(site, given)
    finally:
        site.down()
    if broken:
        sys.exit("\n".join(["chaos: promises broken", *broken]))


def disturbed(site: Site, given: argparse.Namespace) -> list[str]:
    wanted = Wanted(
        seed=given.seed,
        injections=given.injections,
        minutes=given.minutes,
        steps=given.steps,
        total_steps=given.total_steps,
        restart_budget=given.restart_budget,
        agents=given.agents,
        kinds=given.parts,
        points=given.points,
    )
    outcome = asyncio.run(chaos(site, wanted))
    outcome.write(site.home / "chaos")
    print(json.dumps(outcome.as_json()) if given.json else outcome.markdown())
    return faults(outcome, wanted)


def compared(site: Site, given: argparse.Namespace) -> list[str]:
    if given.cycles:
        epochs = given.steps * BATCH_GROUPS // PROMPTS
        shape = Shape(steps=epochs * PROMPTS // BATCH_GROUPS, prompts=PROMPTS, epochs=epochs)
        found = asyncio.run(compare.cycles(site, given.cycles, shape))
    else:
        plan = make_plan(
            given.seed, given.injections, given.minutes * 60, given.parts or KINDS, given.points or OF_EVERY_RUN
        )
        shape = Shape(steps=given.steps, eta=0, prompts=PROMPTS)
        found = asyncio.run(compare.bitwise(site, plan, given.seed, shape))
    print(f"{found.injections} injections; {found.seen}" if not found.differences else "\n".join(found.differences))
    return list(found.differences)


if __name__ == "__main__":
    main()
