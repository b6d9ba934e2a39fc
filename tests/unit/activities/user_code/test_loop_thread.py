"""The thread in which a user's async functions run."""

import asyncio
import threading
from typing import Any

from psrl.activities.user_code.threads import LoopThread


class Waiting:
    """Prepared: an async function that waits for the test."""

    is_async, about, at_once = True, None, None

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        self.function = self.ask

    def ask(self, argument: Any) -> Any:
        async def answer() -> str:
            self.began.set()
            await asyncio.to_thread(self.may_end.wait, 20)
            return str(argument)

        return answer()

    def read(self, argument: Any, returned: Any) -> Any:
        return returned


async def test_the_thread_ends_when_it_is_closed_and_its_last_call_has_ended() -> None:
    loop, waiting = LoopThread("reward"), Waiting()
    thread = loop._thread
    call = loop.submit(waiting, "done")
    await asyncio.to_thread(waiting.began.wait, 20)
    loop.close()
    assert thread.is_alive()
    waiting.may_end.set()
    assert await call == "done"
    await asyncio.to_thread(thread.join, 20)
    assert not thread.is_alive()
