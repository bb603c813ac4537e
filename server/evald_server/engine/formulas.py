"""Arithmetic on scores: numbers, names, + - * / ^, and a few functions. No other code is run."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

# Enough for a formula of a few scores, and too short to nest deeper than Python's stack.
MAX_LENGTH: Final = 500

_OPERATORS: Final[Mapping[type[ast.operator], Callable[[float, float], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., float]]] = {
    "min": min,
    "max": max,
    "abs": abs,
    # Floats, because powers of integers grow without limit.
    "floor": lambda number: float(math.floor(number)),
    "ceil": lambda number: float(math.ceil(number)),
    "exp": math.exp,
    "sqrt": math.sqrt,
    "log": math.log,
}


class Formula:
    """A parsed formula. names: its variables. can_be_negative: for scores from 0 to 1. Raises ValueError for an invalid formula."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise ValueError(f"got {len(text)} characters, wanted at most {MAX_LENGTH}")
        try:
            # "^" means power, as in the formulas of OpenAI's graders.
            self._root = ast.parse(text.strip().replace("^", "**"), mode="eval").body
            names = self._names(self._root)
        except (SyntaxError, RecursionError, MemoryError):
            raise ValueError(
                f"cannot parse {text[:80]!r} as a formula; wanted for example 0.7 * first + 0.3 * second"
            ) from None
        self.names = frozenset(names)
        self.can_be_negative = any(
            isinstance(node, ast.Sub | ast.USub) or (isinstance(node, ast.Name) and node.id == "log")
            for node in ast.walk(self._root)
        )

    def value(self, names: Mapping[str, float]) -> float:
        """Return the value. Raises ArithmeticError if it is undefined."""
        try:
            result = self._value(self._root, names)
        except ValueError as problem:
            raise ArithmeticError(str(problem)) from None
        if not math.isfinite(result):
            raise ArithmeticError("the result is not a finite number")
        return float(result)

    def _names(self, node: ast.AST) -> list[str]:
        match node:
            case ast.Name(id=name):
                return [name]
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return []
            case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
                return self._names(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return [*self._names(left), *self._names(right)]
            case ast.Call(func=ast.Name(id=name), args=[_, *_] as args, keywords=[]) if name in _FUNCTIONS:
                if name in ("min", "max") or len(args) == 1:
                    return [found for arg in args for found in self._names(arg)]
                raise ValueError(f"{name}() takes one number, got {len(args)}")
        raise ValueError(
            f"{ast.unparse(node)[:80]!r} is not allowed in a formula; allowed are numbers, names, + - * / ^ "
            f"and {', '.join(_FUNCTIONS)}"
        )

    def _value(self, node: Any, names: Mapping[str, float]) -> Any:
        if isinstance(node, ast.Name):
            return float(names[node.id])
        if isinstance(node, ast.Constant):
            return float(node.value)  # type: ignore[arg-type]
        if isinstance(node, ast.UnaryOp):
            value = self._value(node.operand, names)
            return -value if isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.BinOp):
            result = _OPERATORS[type(node.op)](self._value(node.left, names), self._value(node.right, names))
            if isinstance(result, complex):
                raise ArithmeticError("root of a negative number")  # noqa: TRY004 - has no value
            if not math.isfinite(result):  # min and max would hide it
                raise ArithmeticError("number too large")
            return result
        arguments = [self._value(argument, names) for argument in node.args]
        if len(arguments) == 1 and node.func.id in ("min", "max"):
            return arguments[0]
        return _FUNCTIONS[node.func.id](*arguments)
