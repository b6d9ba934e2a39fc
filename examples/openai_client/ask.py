"""Asks a question of any OpenAI-compatible server, and once more when the answer is no plain number.

    OPENAI_BASE_URL=... OPENAI_API_KEY=... PSRL_MODEL=... PSRL_TASK=task.json python ask.py

A plain client script: it is not told that what it is answered is trained on.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from openai import OpenAI

ATTEMPTS = 2


def main() -> None:
    question = json.loads(Path(os.environ["PSRL_TASK"]).read_text())["messages"][-1]["content"]
    client = OpenAI()
    messages: list = [{"role": "user", "content": question}]
    for _ in range(ATTEMPTS):
        answer = client.chat.completions.create(model=os.environ["PSRL_MODEL"], messages=messages)
        said = answer.choices[0].message.content or ""
        print(f"{question}{said}")
        if said.isdecimal():
            break
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": question}]


if __name__ == "__main__":
    main()
