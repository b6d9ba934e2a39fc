"""`python -m tests.benchmarks.offline`: vLLM's own `LLM.generate`, the yardstick, in a process of its own.

Reads its task from standard input in one line of JSON, prints `ready`, waits for a line, generates, prints the result.
"""

import json
import os
import sys
import time
from typing import Any

from psrl.schemas.messages.rollout import EngineSpec, Sampling
from psrl.workers.rollout.engine import CPU_ENVIRONMENT, ENVIRONMENT


def main() -> None:
    task = json.loads(sys.stdin.readline())
    os.environ.update({**ENVIRONMENT, **CPU_ENVIRONMENT})
    generate = _engine(EngineSpec.model_validate(task["spec"]), Sampling.model_validate(task["sampling"]))
    generate(task["prompts"][: task["warm_up"]])
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    tokens = generate(task["prompts"])
    print(json.dumps({"tokens": tokens, "seconds": time.monotonic() - began}), flush=True)


def _engine(spec: EngineSpec, sampling: Sampling) -> Any:
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=spec.model.path,
        dtype=spec.rollout.dtype.value,
        seed=spec.seed,
        enforce_eager=spec.rollout.enforce_eager,
        kv_cache_memory_bytes=spec.kv_cache_bytes,
        block_size=spec.rollout.block_size,
        max_model_len=spec.context_tokens,
        max_num_seqs=spec.max_num_seqs,
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
    )

    def generate(prompts: list[list[int]]) -> int:
        params = [
            SamplingParams(
                temperature=sampling.temperature,
                max_tokens=sampling.max_tokens,
                seed=number,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
            )
            for number in range(len(prompts))
        ]
        asked = [{"prompt_token_ids": ids} for ids in prompts]
        return sum(len(answer.outputs[0].token_ids) for answer in engine.generate(asked, params, use_tqdm=False))

    return generate


if __name__ == "__main__":
    main()
