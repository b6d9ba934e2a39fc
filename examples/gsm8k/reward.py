"""A reward as veRL's users have it, `custom_reward_function.path` there and `reward.function` here: it imports nothing
of either. Judges as veRL's own scorer for `openai/gsm8k` does, whose prompts ask for the answer after `####`.
"""

import re

ANSWER = re.compile(r"#### (-?[0-9.,]+)")
LOOKED_AT = 300
"""Characters from the end: an answer stands there, and a search in a long text takes time."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """1.0 for the right number after the last `####`; an answer without one is wrong, whatever it says."""
    found = ANSWER.findall(solution_str[-LOOKED_AT:])
    if not found:
        return 0.0
    return 1.0 if found[-1].replace(",", "") == ground_truth else 0.0
