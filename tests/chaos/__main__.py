"""`python -m tests.chaos`: disturb one run on a real stack of its own and print the recovery table."""

import argparse
import asyncio
import json
import sys
from pathlib import Path

from psrl.schemas.stack import HOME_VARIABLE
from tests.support.scripted_engine import Script

from .big import Wanted, chaos, faults
from .plan import KINDS
from .points import BY_NAME
from .site import SCRIPTED, VLLM, Site

TOKEN_S = 0.25
"""Slow enough that some trajectory is always in flight, and that two cores do all of it."""
HOME = Path("/tmp/psrl-chaos")


def names(allowed: tuple[str, ...]):  # type: ignore[no-untyped-def]
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
    parser.add_argument("--steps", type=int, default=40, help="at least")
    parser.add_argument("--parts", type=names(KINDS), default=KINDS)
    parser.add_argument("--points", type=names(tuple(BY_NAME)), default=tuple(BY_NAME))
    parser.add_argument("--engine", choices=("scripted", "vllm"), default="scripted")
    parser.add_argument("--token-s", type=float, default=TOKEN_S, help="of the scripted engine")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.add_argument(
        "--home", type=Path, default=HOME, help=f"of the stack (default {HOME}); ${HOME_VARIABLE} is not used"
    )
    return parser.parse_args()


def main() -> None:
    given = options()
    engine = SCRIPTED if given.engine == "scripted" else VLLM
    site = Site(given.home.absolute(), engine, Script(token_s=given.token_s), say=lambda line: print(line, flush=True))
    wanted = Wanted(given.seed, given.injections, given.minutes, given.steps, given.parts, given.points)
    try:
        outcome = asyncio.run(chaos(site, wanted))
    finally:
        site.down()
    outcome.write(site.home / "chaos")
    print(json.dumps(outcome.as_json()) if given.json else outcome.markdown())
    if broken := faults(outcome, wanted):
        sys.exit("\n".join(["chaos: promises broken", *broken]))


if __name__ == "__main__":
    main()
