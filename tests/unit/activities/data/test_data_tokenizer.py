"""The tokenizer in a process that has just started: many scoring tasks want it at once, and it warns of nothing."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from psrl.activities.data.dataset import load_dataset
from psrl.activities.store.codec import decode_ids
from psrl.schemas.config import parse_config
from tests.support.runs import config_values, ids_of, write_jsonl
from tests.support.tiny_model import SPECIALS

REPOSITORY = Path(__file__).parents[4]


def in_a_fresh_process(code: str, *arguments: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", code, *map(str, arguments)]
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
from pathlib import Path
from psrl.activities.data.dataset import load_dataset
from psrl.activities.data.tokenizer import load_tokenizer
from psrl.schemas.config import parse_config
from tests.support.runs import config_values, write_jsonl
tokenizer = load_tokenizer(sys.argv[1], False)
train = write_jsonl(Path(sys.argv[2]), [{"prompt": "1+" * tokenizer.model_max_length}])
data = {"max_prompt_length": 10_000}
print(len(load_dataset(parse_config(config_values(Path(sys.argv[1]), train, data=data))).train))
"""


def test_texts_longer_than_the_model_takes_are_no_reason_for_a_warning(tiny_model_dir: Path, tmp_path: Path) -> None:
    done = in_a_fresh_process(LOAD_AND_ASK, tiny_model_dir, tmp_path / "train.jsonl")
    assert done.stdout.strip() == "1", done.stderr
    assert "longer than" not in done.stderr


def ending_its_turns(model: Path, folder: Path) -> Path:
    """A tokenizer as encoders have them: it writes a beginning before plain text and an end after it."""
    copy = folder / "model"
    shutil.copytree(model, copy)
    description = json.loads((copy / "tokenizer.json").read_text())
    marks = {name: {"id": name, "ids": [number], "tokens": [name]} for number, name in enumerate(SPECIALS)}
    single = [{"SpecialToken": {"id": "<|bos|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    single.append({"SpecialToken": {"id": "<|eos|>", "type_id": 0}})
    processor = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": marks}
    (copy / "tokenizer.json").write_text(json.dumps({**description, "post_processor": processor}))
    return copy


def test_a_prompt_is_left_open_by_a_tokenizer_that_ends_plain_text(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = ending_its_turns(tiny_model_dir, tmp_path)
    train = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "ab"}, {"prompt": [{"role": "user", "content": "a"}]}])
    dataset = load_dataset(parse_config(config_values(model, train)))
    (plain, chat) = (decode_ids(prompt.ids) for prompt in dataset.train)
    assert plain == [SPECIALS.index("<|bos|>"), *ids_of("ab")]
    assert chat == [SPECIALS.index("<|user|>"), *ids_of("a"), SPECIALS.index("<|assistant|>")]
    (note,) = dataset.notes
    assert note.startswith("the tokenizer of model.path writes '<|eos|>' after plain text: prompts are left open")
