"""The engine of chaos runs: scripted answers that depend on nothing but prompt and index, and a process to be killed.

`--engine tests.chaos.engine:ChaosEngine`, script in `PSRL_SCRIPT`. Promises: a token depends on the group's prompt, the
trajectory's index and its position, never on time, instance or attempt, so that a run that was disturbed has the same
answers as one that was not; lengths differ; the engine is dead when its child process is.
"""

import asyncio
import os
import signal
import struct
import subprocess
import zlib
from collections.abc import AsyncGenerator, Sequence

from psrl.schemas.errors import EngineUnavailable
from psrl.schemas.messages.rollout import EngineSpec
from psrl.workers.rollout.engine import Chunk, EngineRequest, StreamEnd
from tests.support.scripted_engine import FIRST_ID, IDS, STOP_ID, ScriptedEngine

PROMPT_END = 5
"""The id of `<|assistant|>`: the last token before an answer, and never sampled here."""
SHORTEST = 4


class Answer:
    """What the model says to one prompt in one trajectory."""

    def __init__(self, prompt: Sequence[int], index: int) -> None:
        self._seed = zlib.crc32(struct.pack(f"<{len(prompt) + 1}i", *prompt, index))

    def length(self, longest: int) -> int:
        return SHORTEST + self._number(-1) % (longest - SHORTEST + 1)

    def token(self, position: int) -> int:
        return FIRST_ID + self._number(position) % IDS

    def logprob(self, position: int) -> float:
        """Exact in float32."""
        return -(self._number(position) % 7 + 1) / 8

    def _number(self, position: int) -> int:
        return zlib.crc32(struct.pack("<i", position), self._seed)


class ChaosEngine(ScriptedEngine):
    _process: subprocess.Popen[bytes] | None = None

    async def start(self, spec: EngineSpec) -> None:
        self._process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", "sleep", "infinity"])  # noqa: ASYNC220 - starting it takes no time
        await super().start(spec)

    def alive(self) -> bool:
        running = self._process is not None and self._process.poll() is None
        return running and super().alive()

    def kill(self) -> None:
        self._end_process()
        super().kill()

    def shutdown(self) -> None:
        self._end_process()
        super().shutdown()

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        ids, index = list(request.prompt_ids), int(request.request_id.split("-")[-2])
        cut = len(ids) - ids[::-1].index(PROMPT_END)
        answer, done = Answer(ids[:cut], index), len(ids) - cut
        length, version = answer.length(done + request.sampling.max_tokens), str(self.loaded[-1])
        await self._enter(request.request_id)
        try:
            for position in range(done, length):
                await asyncio.sleep(self.script.token_s)
                if not await self._may_sample(request.request_id):
                    yield Chunk([], [], StreamEnd.ABORTED, (version,))
                    return
                last = position == length - 1
                token = STOP_ID if last else answer.token(position)
                end = StreamEnd.STOP if last else None
                yield Chunk([token], [answer.logprob(position)], end, (version,) if last else ())
        finally:
            await self._leave(request.request_id)

    async def _may_sample(self, request_id: str) -> bool:
        if not self.alive():
            raise EngineUnavailable(f"the engine's process is gone (host {os.getpid()})")
        return await super()._may_sample(request_id)
