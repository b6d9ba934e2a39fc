"""What is told of an engine's process that failed, and which failures no repetition heals."""

import logging
import os

import pytest

from psrl.schemas.environment import START_FAULT_VARIABLE
from psrl.workers.rollout.start_fault import LOGGER, report_start_faults, start_fault
from psrl.workers.rollout.unfit import CANNOT_TAKE, told_apart


@pytest.fixture
def vllm_log() -> logging.Logger:
    """As in the engine's process, where vLLM logs what ends its start."""
    return logging.getLogger(LOGGER)


def fail(log: logging.Logger, error: Exception) -> None:
    try:
        raise error
    except Exception:
        log.exception("EngineCore failed to start.")


def test_the_reason_of_a_failed_start_reaches_the_process_that_started_it(vllm_log: logging.Logger) -> None:
    with start_fault() as told:
        report_start_faults()
        try:
            assert told.read_text() == ""
            fail(vllm_log, RuntimeError("expect weight to be\n bfloat16"))
            assert told.read_text() == "RuntimeError: expect weight to be bfloat16"
        finally:
            writer = vllm_log.handlers[-1]
    assert START_FAULT_VARIABLE not in os.environ
    fail(vllm_log, RuntimeError("later"))  # The file is gone: nobody waits for a reason.
    assert not told.exists()
    vllm_log.removeHandler(writer)


def test_without_a_start_nothing_is_written(vllm_log: logging.Logger) -> None:
    before = list(vllm_log.handlers)
    report_start_faults()
    assert vllm_log.handlers == before


def test_code_that_meets_a_model_it_was_not_made_for_is_told_from_a_busy_machine() -> None:
    with pytest.raises(RuntimeError, match=f"{CANNOT_TAKE}: AttributeError: no embed_tokens"), told_apart():
        raise AttributeError("no embed_tokens")
    with pytest.raises(MemoryError), told_apart():
        raise MemoryError
    with pytest.raises(OSError, match="gone"), told_apart():
        raise FileNotFoundError("gone")
