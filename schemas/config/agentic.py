"""How conversations of agents become training data."""

from enum import StrEnum


class ThinkingTemplate(StrEnum):
    """What to do with a chat template that renders earlier turns differently once a conversation goes on."""

    KEEP = "keep"
    """The context stays what the engine saw: the policy sees its own words, reasoning included."""
    FORK = "fork"
    """Every turn is a training sequence of its own, with the history as the template renders it."""
    REFUSE = "refuse"
    """Such a template is refused when it is opened."""
