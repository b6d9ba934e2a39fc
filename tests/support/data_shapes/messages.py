"""Conversations, as agents and data sets write them."""

import json

import pyarrow as pa

from .shape import Shape, jsonl, parquet, user

ASKED = "<|user|>q<|assistant|>"
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
MESSAGES = [
    Shape(
        "messages column",
        jsonl({"messages": user("q"), "id": 1}),
        (ASKED,),
        {"id": 1},
        notes=("prompts are taken from column 'messages', as there is no 'prompt'",),
    ),
    Shape("prompt beside messages", jsonl({"prompt": "p", "messages": user("q")}), ("p",), {"messages": user("q")}),
    Shape(
        "ShareGPT",
        jsonl({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}),
        (ASKED,),
        {"completion": [{"role": "assistant", "content": "a"}]},
        notes=("prompts are taken from column 'conversations'", "conversations end with the assistant's answer"),
    ),
    Shape(
        "ShareGPT with another speaker",
        jsonl({"conversations": [{"from": "narrator", "value": "q"}]}),
        refused=r"a\.jsonl:1: message 0 of 'conversations': from='narrator'; allowed: human, user, gpt",
    ),
    Shape(
        "ends with the answer",
        jsonl({"prompt": [*user("q"), {"role": "assistant", "content": "a"}]}),
        (ASKED,),
        {"completion": [{"role": "assistant", "content": "a"}]},
        notes=("conversations end with the assistant's answer: it is left out of the prompt",),
    ),
    Shape(
        "nothing but the answer",
        jsonl({"prompt": [{"role": "assistant", "content": "a"}]}),
        refused=r"a\.jsonl:1: column 'prompt' holds only the assistant's messages",
    ),
    Shape(
        "content as parts",
        jsonl(
            {"prompt": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}
        ),
        ("<|user|>a\nb<|assistant|>",),
    ),
    Shape(
        "content as parts, in Parquet",
        parquet(
            (
                "prompt",
                pa.array(
                    [[{"role": "user", "content": [{"type": "text", "text": "a", "image_url": None}]}]],
                    pa.list_(
                        pa.struct(
                            [
                                ("role", pa.string()),
                                (
                                    "content",
                                    pa.list_(
                                        pa.struct(
                                            [("type", pa.string()), ("text", pa.string()), ("image_url", pa.string())]
                                        )
                                    ),
                                ),
                            ]
                        )
                    ),
                ),
            )
        ),
        ("<|user|>a<|assistant|>",),
    ),
    Shape(
        "an image among the parts",
        jsonl(
            {
                "prompt": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "a"},
                            {"type": "image_url", "image_url": {"url": "http://x"}},
                        ],
                    }
                ]
            }
        ),
        refused=r"a\.jsonl:1: message 0 of 'prompt', part 1 is of type 'image_url': images, video and sound are not",
    ),
    Shape(
        "the bytes of an image among the parts",
        parquet(("prompt", pa.array([[{"role": "user", "content": [{"type": "image", "image": b"\xff"}]}]]))),
        refused=r"a\.parquet: row 1: message 0 of 'prompt', part 0 is of type 'image'",
    ),
    Shape(
        "content null",
        jsonl({"prompt": [{"role": "user", "content": None}]}),
        refused=r"a\.jsonl:1: message 0 of 'prompt': content=None; allowed: text, or a list of parts of text",
    ),
    Shape(
        "content absent, tools called",
        jsonl({"prompt": [*user("q"), {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "1"}]}),
        ("<|user|>q<|assistant|><|eos|><|tool|>1<|assistant|>",),
    ),
    Shape(
        "content null, tools called",
        jsonl(
            {
                "prompt": [
                    *user("q"),
                    {"role": "assistant", "content": None, "tool_calls": [CALL]},
                    {"role": "tool", "content": "1"},
                ]
            }
        ),
        ("<|user|>q<|assistant|><|eos|><|tool|>1<|assistant|>",),
    ),
    Shape("tool_calls null", jsonl({"prompt": [{"role": "user", "content": "q", "tool_calls": None}]}), (ASKED,)),
    Shape(
        "tool_calls of another kind",
        jsonl({"prompt": [{"role": "assistant", "content": "a", "tool_calls": "f(x)"}, *user("q")]}),
        refused=r"a\.jsonl:1: message 0 of 'prompt': tool_calls='f\(x\)'; allowed: a list of objects",
    ),
    Shape(
        "role null",
        jsonl({"prompt": [{"role": None, "content": "q"}]}),
        refused=r"a\.jsonl:1: message 0 of 'prompt': role=None; allowed: text",
    ),
    Shape(
        "a message that is text",
        jsonl({"prompt": ["q"]}),
        refused=r"a\.jsonl:1: message 0 of 'prompt' must be an object, not 'q'",
    ),
    Shape(
        "messages as JSON text",
        jsonl({"prompt": json.dumps(user("q"))}),
        (ASKED,),
        notes=("column 'prompt' holds conversations written as text: they are read as such",),
    ),
    Shape(
        "messages as Python prints them",
        jsonl({"prompt": str(user("it's"))}),
        ("<|user|>it's<|assistant|>",),
        notes=("column 'prompt' holds conversations written as text",),
    ),
    Shape(
        "messages as NumPy prints them",
        jsonl({"prompt": "[{'role': 'system', 'content': 's'}\n {'role': 'user', 'content': 'q'}]"}),
        ("[{'role': 'system', 'content': 's'}\n {'role': 'user', 'content': 'q'}]",),
        notes=("column 'prompt' holds what begins like a conversation and cannot be read as one",),
    ),
    Shape("text that begins like a list", jsonl({"prompt": '[{"x": 1}] is what?'}), ('[{"x": 1}] is what?',)),
    Shape(
        "OpenAI's function_call",
        jsonl(
            {
                "prompt": [
                    *user("q"),
                    {"role": "assistant", "content": None, "function_call": CALL["function"]},
                    *user("r"),
                ]
            }
        ),
        ("<|user|>q<|assistant|><|eos|><|user|>r<|assistant|>",),
    ),
    Shape(
        "ShareGPT with a call of a tool",
        jsonl(
            {
                "conversations": [
                    {"from": "human", "value": "q"},
                    {"from": "function_call", "value": '{"name": "f", "arguments": {}}'},
                    {"from": "observation", "value": "1"},
                ]
            }
        ),
        ("<|user|>q<|assistant|><|eos|><|tool|>1<|assistant|>",),
        notes=("prompts are taken from column 'conversations'",),
    ),
    Shape(
        "conversation column",
        jsonl({"conversation": user("q")}),
        (ASKED,),
        notes=("prompts are taken from column 'conv",),
    ),
]
