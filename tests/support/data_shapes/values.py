"""What stands in the columns of a row."""

import json

import pyarrow as pa

from .shape import LEFT_OUT, ONE, VERL_EXTRA, VERL_ROW, Shape, content, jsonl, parquet, user

IMAGE = {"bytes": b"\x89PNG", "path": None}
IMAGE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
VALUES = [
    Shape("veRL's row", jsonl(VERL_ROW), ("<|user|>1+1=<|assistant|>",), VERL_EXTRA, "2"),
    Shape(
        "reward_model and extra_info as JSON text",
        jsonl(
            VERL_ROW
            | {"reward_model": json.dumps(VERL_ROW["reward_model"]), "extra_info": json.dumps(VERL_ROW["extra_info"])}
        ),
        ("<|user|>1+1=<|assistant|>",),
        VERL_EXTRA,
        "2",
    ),
    Shape(
        "extra_info null",
        jsonl(VERL_ROW | {"extra_info": None}),
        ("<|user|>1+1=<|assistant|>",),
        VERL_EXTRA | {"extra_info": None},
        "2",
    ),
    Shape(
        "extra_info absent",
        jsonl({name: VERL_ROW[name] for name in ("prompt", "reward_model")}),
        ("<|user|>1+1=<|assistant|>",),
        {"reward_model": {"style": "rule"}},
        "2",
    ),
    Shape(
        "extra_info as other text",
        jsonl({"prompt": "a", "extra_info": "see the book"}),
        ("a",),
        {"extra_info": "see the book"},
    ),
    Shape("reward_model empty", jsonl({"prompt": "a", "reward_model": ""}), ("a",)),
    Shape(
        "reward_model as other text",
        jsonl({"prompt": "a", "reward_model": "rule"}),
        refused=r"a\.jsonl:1: reward_model='rule' must be an object with a ground_truth",
    ),
    Shape(
        "ground_truth as a column",
        jsonl({"prompt": "a", "ground_truth": ["1", "one"]}),
        ("a",),
        {"ground_truth": ["1", "one"]},
        ["1", "one"],
    ),
    Shape(
        "prompt missing",
        jsonl({"question": "a", "answer": "b"}),
        refused=r"a\.jsonl:1: no column 'prompt' \(data\.prompt_key\); columns here: question, "
        r"answer; allowed: one of them, for example data\.prompt_key=question",
    ),
    Shape(
        "prompt in a column of another name",
        jsonl({"question": "a", "answer": "b"}),
        ("a",),
        {"answer": "b"},
        data={"prompt_key": "question"},
    ),
    Shape(
        "Alpaca's columns",
        jsonl({"instruction": "a", "input": "", "output": "b"}),
        ("a",),
        {"input": "", "output": "b"},
        data={"prompt_key": "instruction"},
    ),
    Shape(
        "preference data",
        jsonl({"prompt": "a", "chosen": user("b"), "rejected": user("c"), "score_chosen": 8.5}),
        ("a",),
        {"chosen": user("b"), "rejected": user("c"), "score_chosen": 8.5},
    ),
    Shape(
        "prompt null",
        jsonl({"prompt": "a"}, {"prompt": None}),
        refused=r"a\.jsonl:2: column 'prompt' must be text or a list of chat messages, not None",
    ),
    Shape(
        "prompt given twice",
        content("a.jsonl", '{"prompt": "a", "prompt": "b"}'),
        refused=r"a\.jsonl:1: prompt=\? cannot be kept: it is given twice",
    ),
    Shape(
        "NUL in a prompt",
        jsonl({"prompt": "a"}, {"prompt": "b\0c"}),
        refused=r"a\.jsonl:2: prompt='b\\x00c' cannot be kept: it holds a NUL character; allowed: text without NUL",
    ),
    Shape(
        "unpaired surrogate in a prompt",
        jsonl({"prompt": "a\ud83d"}),
        refused=r"a\.jsonl:1: prompt='a\\ud83d' cannot be kept: it holds the unpaired surrogate U\+D83D at character 1",
    ),
    Shape(
        "unpaired surrogate in a message",
        jsonl({"prompt": user("\ude00")}),
        refused=r"a\.jsonl:1: prompt\[0\]\.content='\\ude00' cannot be kept",
    ),
    Shape(
        "NUL in a message's key",
        jsonl({"prompt": [{"role": "user", "content": "a", "k\0": 1}]}),
        refused=r"a\.jsonl:1: prompt\[0\]='k\\x00' cannot be kept: it has a key that holds a NUL character",
    ),
    Shape(
        "NUL in the ground truth",
        jsonl({"prompt": "a", "reward_model": {"ground_truth": ["\0"]}}),
        refused=r"a\.jsonl:1: reward_model\.ground_truth\[0\]='\\x00' cannot be kept",
    ),
    Shape(
        "NUL in a key of the ground truth",
        jsonl({"prompt": "a", "reward_model": {"ground_truth": {"\0": 1}}}),
        refused=r"a\.jsonl:1: reward_model\.ground_truth='\\x00' cannot be kept: it has a key that holds a NUL",
    ),
    Shape(
        "NaN in the ground truth",
        jsonl({"prompt": "a", "reward_model": {"ground_truth": float("nan")}}),
        refused=r"a\.jsonl:1: reward_model\.ground_truth=nan cannot be kept: it is not a finite number",
    ),
    Shape(
        "surrogate in data_source",
        jsonl({"prompt": "a", "data_source": "\ud800"}),
        refused=r"a\.jsonl:1: data_source='\\ud800' cannot be kept",
    ),
    Shape(
        "number as data_source",
        jsonl({"prompt": "a", "data_source": 1}),
        refused=r"a\.jsonl:1: data_source=1 must be text",
    ),
    Shape(
        "bytes that are no UTF-8 in a prompt",
        content("a.jsonl", b'{"prompt": "a\xff"}'),
        refused=r"a\.jsonl:1: prompt='a\\udcff' cannot be kept: it is not valid UTF-8 \(byte 0xff at character 1\)",
    ),
    Shape(
        "bytes that are no UTF-8 elsewhere",
        content("a.jsonl", b'{"prompt": "a", "raw": "\xff"}'),
        ("a",),
        {"raw": None},
        notes=(LEFT_OUT.format("raw"),),
    ),
    Shape(
        "NUL elsewhere",
        jsonl({"prompt": "a"}, {"prompt": "b", "meta": {"x": ["ok", "\0"]}}),
        refused=r"a\.jsonl:2: meta\.x\[1\]='\\x00' cannot be kept: it holds a NUL character; allowed: text without NUL",
    ),
    Shape(
        "surrogate elsewhere",
        jsonl({"prompt": "a", "note": "x\ud83d"}),
        refused=r"a\.jsonl:1: note='x\\ud83d' cannot be kept: it holds the unpaired surrogate U\+D83D at character 1",
    ),
    Shape(
        "NUL in a key elsewhere",
        jsonl({"prompt": "a", "meta": {"k\0": 1}}),
        refused=r"a\.jsonl:1: meta='k\\x00' cannot be kept: it has a key that holds a NUL character",
    ),
    Shape(
        "NUL in a column's name",
        jsonl({"prompt": "a", "k\0": 1}),
        ("a",),
        {"k\\x00": 1},
        notes=("the name of a column holds a NUL character: it is spelt k\\x00",),
    ),
    Shape(
        "NaN and infinity elsewhere",
        content("a.jsonl", '{"prompt": "a", "x": NaN, "y": [1, -Infinity, 1e999]}'),
        ("a",),
        {"x": None, "y": [1, None, None]},
        notes=(LEFT_OUT.format("x"), LEFT_OUT.format("y")),
    ),
    Shape(
        "huge integers elsewhere",
        content("a.jsonl", f'{{"prompt": "a", "x": {"9" * 100}, "y": {"9" * 5000}}}'),
        ("a",),
        {"x": int("9" * 100), "y": None},
        notes=(LEFT_OUT.format("y"),),
    ),
    Shape(
        "huge integer as ground truth",
        content("a.jsonl", f'{{"prompt": "a", "reward_model": {{"ground_truth": {"9" * 5000}}}}}'),
        refused=r"a\.jsonl:1: reward_model\.ground_truth=\? cannot be kept: it is an integer of 5000 digits",
    ),
    Shape(
        "key given twice elsewhere",
        content("a.jsonl", '{"prompt": "a", "m": {"k": 1, "k": 2}}'),
        ("a",),
        {"m": {"k": None}},
        notes=(LEFT_OUT.format("m"),),
    ),
    Shape(
        "nested 500 deep elsewhere",
        content("a.jsonl", f'{{"prompt": "a", "x": {500 * "["}{500 * "]"}}}'),
        ("a",),
        notes=(LEFT_OUT.format("x"),),
    ),
    Shape(
        "images in a column",
        parquet(("prompt", ONE), ("images", pa.array([[IMAGE]]))),
        refused=r"a\.parquet: row 1: column 'images' holds images, video or sound; allowed: prompts of text alone",
    ),
    Shape(
        "images column without images",
        parquet(("prompt", ONE), ("images", pa.array([[]], pa.list_(pa.string())))),
        ("a",),
        {"images": []},
    ),
    Shape(
        "image that is null in all its parts",
        parquet(("prompt", ONE), ("image", pa.array([{"bytes": None, "path": None}], IMAGE_TYPE))),
        ("a",),
        {"image": {"bytes": None, "path": None}},
    ),
    Shape(
        "name of a container in column image",
        jsonl({"prompt": "a", "image": "swe/astropy:1"}),
        ("a",),
        {"image": "swe/astropy:1"},
    ),
]
