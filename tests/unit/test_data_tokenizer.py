"""The tokenizer in a process that has just started: many scoring tasks want it at once."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

LOAD_AT_ONCE = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from psrl.activities.data.tokenizer import load_tokenizer

together = threading.Barrier(8)

def load(_):
    together.wait()
    return load_tokenizer(sys.argv[1], False)

with ThreadPoolExecutor(8) as pool:
    print(len({id(tokenizer) for tokenizer in pool.map(load, range(8))}))
"""


def test_threads_that_need_the_tokenizer_at_once_get_one_and_the_same(tiny_model_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOAD_AT_ONCE, str(tiny_model_dir)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.strip() == "1", done.stderr
