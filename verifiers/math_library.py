"""math-verify, with what it needs to be used in any thread: no alarms, and a lock.

math-verify bounds its time by SIGALRM, which works in main threads only; here it is switched off,
and time is bounded by the process that grades (`verifiers.pool`). Importing this module imports
sympy and reads a formula, so that neither is part of the time of the first grade.

Of prose, it has Python evaluate what is nothing but ASCII digits, dots, parentheses and operators,
which `verifiers.math_bounds` has bounded by then; nothing else of a text is ever evaluated.
"""

from __future__ import annotations

import logging
import threading
from functools import lru_cache
from typing import Any

import sympy
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import UnevaluatedExpr

from verifiers.math_answers import Written

# It warns, once, that its alarms are switched off.
logging.getLogger("math_verify").setLevel(logging.CRITICAL)

_lock = threading.Lock()  # The parser's tables grow while it works.
_FORMULAS = (LatexExtractionConfig(),)
_PROSE = (LatexExtractionConfig(), ExprExtractionConfig())
_HUNDREDTH = UnevaluatedExpr(sympy.Rational(1, 100))


def read(written: Written) -> list[Any]:
    """Return what an answer says, as sympy's objects; empty if it says nothing that is understood.

    The text must have passed `verifiers.math_bounds`.
    """
    with _lock:
        return _read(written)


@lru_cache(maxsize=256)
def _read(written: Written) -> list[Any]:
    delimited = written.prose or "$" in written.text or "\\(" in written.text
    found: list[Any] = parse(
        written.text if delimited else f"${written.text}$",
        _PROSE if written.prose else _FORMULAS,
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return found


def equal(wanted: list[Any], found: list[Any], decimals: int) -> bool:
    """Tell whether an answer says what is wanted; floats are rounded to so many decimals."""
    with _lock:
        found = [one for one in found if not all(_far_apart(one, other) for other in wanted)]
        try:
            return bool(
                verify(
                    wanted,
                    found,
                    float_rounding=decimals,
                    timeout_seconds=None,
                    raise_on_error=True,
                )
            )
        except MemoryError:
            raise
        except Exception:
            # sympy refuses to compare the two, which it does for nothing that is the same.
            return False


def _far_apart(one: Any, other: Any) -> bool:
    """Tell whether two expressions have clearly different values at one point.

    Then they are not equal, which simplifying their difference may take seconds to say. Decides
    nothing where math-verify is lenient: for floats, percentages and names.
    """
    both = (one, other)
    if not all(isinstance(each, sympy.Expr) and not each.is_Symbol for each in both):
        return False
    if any(each.has(sympy.Float, UnevaluatedExpr) for each in both):
        return False
    names = sorted(one.free_symbols | other.free_symbols, key=str)
    # Some positive numbers without a pattern, where roots and logarithms are real.
    point = {name: sympy.Float(0.618 + 0.271828 * place) for place, name in enumerate(names)}
    try:
        x, y = (complex(each.evalf(subs=point)) for each in both)
    except (TypeError, ValueError, ArithmeticError, AttributeError):
        return False  # One of them is no finite number there.
    return abs(x - y) > 1e-3 * (1 + abs(x) + abs(y))


def worked_out(value: Any) -> bool:
    """Tell whether a value is a number, or made of numbers, with nothing left to reckon.

    Fractions, percentages and numbers times a power of ten are; sums, products and roots are not.
    """
    if isinstance(value, sympy.Number):
        return True
    if isinstance(value, sympy.Equality):
        return worked_out(value.rhs)
    if isinstance(value, sympy.FiniteSet | sympy.Tuple):
        return all(worked_out(one) for one in value.args)
    if isinstance(value, sympy.Mul):
        return all(isinstance(one, sympy.Number) or _is_scale(one) for one in value.args) and (
            sum(isinstance(one, sympy.Number) and one != -1 for one in value.args) <= 1
        )
    return False


def _is_scale(value: Any) -> bool:
    """Whether a value is one over a whole number, or a power of ten."""
    if value == _HUNDREDTH:
        return True
    if not isinstance(value, sympy.Pow):
        return False
    base, exponent = value.args
    return isinstance(exponent, sympy.Integer) and (
        (base == 10) or (exponent == -1 and isinstance(base, sympy.Integer))
    )


read(Written("x^{2}+\\frac{1}{2}"))
