"""Arithmetic on scores: numbers, names, + - * / ^, and a few functions. No other code is run."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

# Enough for a formula of a few scores, and too short to nest deeper than Python's stack.
MAX_LENGTH: Final = 500

Value: TypeAlias = Callable[[Mapping[str, float]], float]
"""Returns the value of a part of a formula for the values of the names."""

_OPERATORS: Final[Mapping[type[ast.operator], Callable[[float, float], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., float]]] = {
    "min": lambda *numbers: min(numbers),
    "max": lambda *numbers: max(numbers),
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
            root = ast.parse(text.strip().replace("^", "**"), mode="eval").body
            self.names: set[str] = set()
            self._value = self._compile(root)
        except (SyntaxError, RecursionError, MemoryError):
            raise ValueError(
                f"cannot parse {text[:80]!r} as a formula; wanted for example 0.7 * first + 0.3 * second"
            ) from None
        self.can_be_negative = any(
            isinstance(node, ast.Sub | ast.USub) or (isinstance(node, ast.Name) and node.id == "log")
            for node in ast.walk(root)
        )

    def value(self, names: Mapping[str, float]) -> float:
        """Return the value. Raises ArithmeticError if it is undefined."""
        try:
            return _finite(self._value(names))
        except ValueError as problem:
            raise ArithmeticError(str(problem)) from None

    def _compile(self, node: ast.AST) -> Value:
        match node:
            case ast.Name(id=name):
                self.names.add(name)
                return lambda names: float(names[name])
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return lambda _: float(number)
            case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
                inner = self._compile(operand)
                return inner if isinstance(sign, ast.UAdd) else lambda names: -inner(names)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                a, b, operate = self._compile(left), self._compile(right), _OPERATORS[type(op)]
                return lambda names: _finite(operate(a(names), b(names)))
            case ast.Call(func=ast.Name(id=name), args=[_, *_] as args, keywords=[]) if name in _FUNCTIONS:
                if name not in ("min", "max") and len(args) > 1:
                    raise ValueError(f"{name}() takes one number, got {len(args)}")
                parts = [self._compile(argument) for argument in args]
                return lambda names: _FUNCTIONS[name](*[part(names) for part in parts])
        raise ValueError(
            f"{ast.unparse(node)[:80]!r} is not allowed in a formula; allowed are numbers, names, + - * / ^ "
            f"and {', '.join(_FUNCTIONS)}"
        )


def _finite(number: Any) -> float:
    """Return a number. Raises ArithmeticError for one that is not finite, which min and max would hide."""
    if isinstance(number, complex):
        raise ArithmeticError("root of a negative number")  # noqa: TRY004 - has no value
    if not math.isfinite(number):
        raise ArithmeticError("number too large")
    return float(number)
