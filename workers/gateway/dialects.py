"""vLLM's conversions, loaded when the first request needs them: that takes seconds and half a gigabyte."""

import asyncio
import importlib

from .errors import ApiError

MODULES = ("vllm.entrypoints.anthropic.serving", "vllm.entrypoints.openai.responses.streaming_events")


async def loaded() -> None:
    """Beside the event loop, and beside the text work of other requests. Raises `ApiError` where vLLM is not
    installed."""
    try:
        for module in MODULES:
            await asyncio.to_thread(importlib.import_module, module)
    except ImportError as error:
        raise ApiError(501, "not_installed", f"this dialect needs vLLM where the gateway runs: {error}") from error
