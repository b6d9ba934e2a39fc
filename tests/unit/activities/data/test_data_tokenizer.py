"""The tokenizer in a process that has just started: many scoring tasks want it at once, and it warns of nothing."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[4]


def in_a_fresh_process(code: str, model: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", code, str(model)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)


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
    done = in_a_fresh_process(LOAD_AT_ONCE, tiny_model_dir)
    assert done.stdout.strip() == "1", done.stderr


LOAD_AND_ASK = """
import sys
from psrl.activities.data.dataset import _tokenize
from psrl.activities.data.prompt import RenderedPrompt
from psrl.activities.data.tokenizer import load_tokenizer
tokenizer = load_tokenizer(sys.argv[1], False)
longer = RenderedPrompt("", "1+" * tokenizer.model_max_length, True, "", "", {})
print(len(_tokenize(tokenizer, [longer])[0]) > tokenizer.model_max_length)
"""


def test_texts_longer_than_the_model_takes_are_no_reason_for_a_warning(tiny_model_dir: Path) -> None:
    done = in_a_fresh_process(LOAD_AND_ASK, tiny_model_dir)
    assert done.stdout.strip() == "True", done.stderr
    assert "longer than" not in done.stderr
