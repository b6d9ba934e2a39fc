"""The value of `$((…))` in a shell script: whole numbers and the four operations. Called by `shell.py`."""

import ast
import operator
from collections.abc import Callable

OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: int(left / right),  # a shell cuts towards 0
    ast.Mod: operator.mod,
}


class NotANumber(Exception):
    """The expression has something else in it, or a variable that is no number."""


def evaluate(expression: str, variable: Callable[[str], str]) -> int:
    """`variable` gives the text of one by its name. Raises `NotANumber`."""
    try:
        tree = ast.parse(expression.replace("${", "").replace("}", "").replace("$", "").strip(), mode="eval")
        return _value(tree.body, variable)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError) as error:
        raise NotANumber(expression) from error


def _value(node: ast.expr, variable: Callable[[str], str]) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return int(variable(node.id))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, variable)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](_value(node.left, variable), _value(node.right, variable))
    raise NotANumber(ast.dump(node))
