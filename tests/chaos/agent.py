"""The agent of chaos runs: a few turns over HTTP, each asked for until it is answered, and once more afterwards.

Promises: it dies of an answer that differs from the one it was given before, and of any refusal but those that say
"later".
"""

import time

import httpx

from psrl.schemas.messages.agents import AgentTask

TURNS = 3
LATER = (429, 502, 503)
PAUSE_S = 0.5
PATIENCE_S = 600.0
"""With one turn. Longer than the longest pause between two tries of a quarantined instance."""


def converse(task: AgentTask) -> None:
    messages = [*(task.messages or [{"role": "user", "content": task.prompt}])]
    headers = {"authorization": f"Bearer {task.api_key}"}
    with httpx.Client(base_url=task.base_url, headers=headers, timeout=120) as http:
        for number in range(TURNS):
            said = _asked(http, f"turn-{number}", task.model, messages)
            again = _asked(http, f"turn-{number}", task.model, messages)
            if said != again:
                raise AssertionError(f"asked for again, a turn had another answer: {said!r}, then {again!r}")
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "On."}]


def _asked(http: httpx.Client, key: str, model: str, messages: list[dict[str, str]]) -> str:
    deadline, headers = time.monotonic() + PATIENCE_S, {"idempotency-key": key}
    while True:
        try:
            answer = http.post("chat/completions", json={"model": model, "messages": messages}, headers=headers)
            if answer.status_code not in LATER or time.monotonic() > deadline:
                answer.raise_for_status()
                return str(answer.json()["choices"][0]["message"]["content"])
        except httpx.TransportError:  # the gateway was ended
            if time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_S)
