"""`python -m psrl.workers.gateway`: the gateway of a stack, or one copy of it."""

import argparse
import functools

from ..process import run_worker
from .main import serve

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m psrl.workers.gateway")
    parser.add_argument("--listen", metavar="HOST:PORT", default="", help="default: the stack's gateway address")
    run_worker(functools.partial(serve, parser.parse_args().listen))
