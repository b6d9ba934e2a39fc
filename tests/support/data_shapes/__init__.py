"""Data as people have them. Each shape is either read, or refused at admission by its place."""

from .columns import COLUMNS
from .files import FILES
from .messages import MESSAGES
from .shape import Shape
from .values import VALUES

SHAPES = [*FILES, *VALUES, *COLUMNS, *MESSAGES]

__all__ = ["SHAPES", "Shape"]
