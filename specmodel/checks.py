"""Range checks for single numbers and arrays, done once, where values enter."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from specmodel.errors import InputError

if TYPE_CHECKING:
    from specmodel.units import Numeric


MAX_BATCH = 1_000_000  # no engine steps more sequences at once
MAX_CONTEXT = 100_000_000  # longer than any model reads; stops slips such as bytes given for tokens


def is_scalar(value: object) -> bool:
    """Whether a value is a plain Python number (and so needs no NumPy)."""
    return isinstance(value, (int, float))


def real(
    field: str, value: object, *, low: float = -math.inf, high: float = math.inf, above: bool = False
) -> float:
    """A finite number in [low, high], or in (low, high] with ``above``; anything else is an InputError."""
    allowed = _range(low, high, above)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        try:
            value = value.item()  # type: ignore[attr-defined]  # a NumPy scalar
        except (AttributeError, ValueError):
            raise InputError(field, value, f"must be a number {allowed}") from None
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(field, value, f"must be a finite number {allowed}")
    if not low <= value <= high or (above and value == low):
        raise InputError(field, value, f"must be {allowed}")
    return float(value)


def whole(field: str, value: object, *, low: int = 0, high: int = 10**9) -> int:
    """A whole number in [low, high]; 3.0 counts as 3, 2.5 is an InputError."""
    number = real(field, value) if not isinstance(value, int) or isinstance(value, bool) else value
    if number != int(number):
        raise InputError(field, value, f"must be a whole number from {low:,} to {high:,}")
    if not low <= number <= high:
        raise InputError(field, value, f"must be from {low:,} to {high:,}")
    return int(number)


def all_within(
    field: str, values: Numeric, *, low: float = -math.inf, high: float = math.inf, above: bool = False
) -> Numeric:
    """Like `real`, for an array of any shape; the first value outside is named."""
    if is_scalar(values):
        return real(field, values, low=low, high=high, above=above)
    import numpy as np

    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise InputError(field, values, f"must be numbers {_range(low, high, above)}") from None
    good = (array >= low) & (array <= high) & np.isfinite(array)
    if above:
        good &= array != low
    if not good.all():
        raise InputError(field, float(array[~good].flat[0]), f"must be {_range(low, high, above)}")
    return array


def choice(field: str, value: str, allowed: tuple[str, ...]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in allowed:
        raise InputError(field, value, "must be one of " + ", ".join(allowed))
    return value


def listed(field: str, values: object) -> list[Any]:
    """The entries of a sequence or array; a text or a single number is an InputError, not a sequence of letters."""
    single = isinstance(values, (str, bytes)) or getattr(values, "ndim", 1) == 0
    if single or not hasattr(values, "__iter__"):
        raise InputError(field, values, "must be a sequence of values")
    return list(values)


def _range(low: float, high: float, above: bool) -> str:
    if math.isinf(low) and math.isinf(high):
        return "finite"
    if math.isinf(high):
        return f"{'>' if above else '>='} {low:,g}"
    if math.isinf(low):
        return f"<= {high:,g}"
    return f"{'above' if above else 'from'} {low:,g} {'up ' if above else ''}to {high:,g}"
