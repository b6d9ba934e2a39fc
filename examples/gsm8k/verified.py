"""A reward in veRL's signature that compares mathematics, not text: `0.5` is `\\frac{1}{2}`. Needs `math-verify`.

The library limits its own time by `signal.alarm`, so that this function runs in processes of its own; nothing has to be
configured for it.
"""

from math_verify import parse, verify


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """1.0 for an answer that equals the ground truth: the last boxed expression, else the last formula or number.

    A ground truth that is no mathematics, and a comparison that takes more than the library's five seconds, are no
    wrong answers: they raise.
    """
    gold = parse(f"\\boxed{{{ground_truth}}}", raise_on_error=True)
    if not gold:
        raise ValueError(f"ground truth {ground_truth!r} of {data_source} cannot be read as mathematics")
    answer = parse(solution_str, raise_on_error=True)
    return {"score": float(verify(gold, answer, raise_on_error=True)), "answered": bool(answer)}
