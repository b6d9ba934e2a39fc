"""The learning rate as a function of the step: nothing to store, so nothing that a restart could lose."""


def learning_rate(lr: float, warmup_steps: int, step: int) -> float:
    """Linear from lr / warmup_steps in step 0 (version 0 becomes 1) to lr, then constant."""
    return lr * min(1.0, (step + 1) / warmup_steps) if warmup_steps else lr
