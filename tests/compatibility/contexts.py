"""Configurations whose context was stretched, in each way that people write it, and how long it is."""

from typing import Any, Final

YARN: Final = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

CASES: Final[tuple[tuple[str, dict[str, Any], int], ...]] = (
    ("llama", {}, 64),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 256),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}, 256),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}, 256),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 128),
    ("qwen2", {"rope_scaling": YARN}, 64),
    ("qwen2", {"rope_scaling": YARN, "max_position_embeddings": 256}, 256),
    ("qwen2", {"rope_scaling": {"type": "yarn", "factor": 4.0}, "max_position_embeddings": 256}, 256),
    (
        "llama",
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "max_position_embeddings": 256,
        },
        256,
    ),
    ("gemma3_text", {}, 64),
    ("gpt2", {}, 64),
    ("opt", {}, 64),
    ("gpt_neox", {"rope_scaling": {"type": "linear", "factor": 4.0}}, 256),
)
"""Family, changes of its configuration, tokens."""
