"""Sizes and times: SI inside, read from and printed for people; GB is 10^9 bytes, GiB is 2^30."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from specmodel.errors import InputError

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from numpy.typing import NDArray

    Numeric: TypeAlias = float | NDArray[Any]
    """A number, or an array of them; formulas broadcast."""

KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
KIB, MIB, GIB, TIB = 2.0**10, 2.0**20, 2.0**30, 2.0**40

_BYTES = {
    "b": 1.0,
    "kb": KB,
    "mb": MB,
    "gb": GB,
    "tb": TB,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_QUANTITY = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-zµ]*)\s*")


def _parse(field: str, text: str | float, scales: dict[str, float], bare: float, units: str) -> float:
    """A non-negative quantity with an optional unit, in base units."""
    allowed = f"a finite number >= 0, with an optional unit: {units}"
    if isinstance(text, bool):
        raise InputError(field, text, allowed)
    if isinstance(text, (int, float)):
        value, scale = float(text), bare
    else:
        found = _QUANTITY.fullmatch(text)
        if found is None:
            raise InputError(field, text, allowed)
        unit = found[2].lower()
        if unit and unit not in scales:
            raise InputError(field, text, allowed)
        value, scale = float(found[1]), scales[unit] if unit else bare
    if not 0.0 <= value * scale < math.inf:
        raise InputError(field, text, allowed)
    return value * scale


def parse_bytes(text: str | float, field: str = "bytes", *, bare_unit: str = "B") -> float:
    """Bytes from ``"80 GB"``, ``"79.65GiB"``, ``"128 KiB"`` or a bare number.

    Parameters
    ----------
    text : str or float
        What a person typed. Units ignore case; KB, MB, GB, TB are decimal, KiB, MiB, GiB, TiB binary.
    field : str
        The option or key, for the error.
    bare_unit : str, default "B"
        What a number without a unit means.

    Raises
    ------
    InputError
        If the text is no size, negative or not finite.

    Examples
    --------
    >>> parse_bytes("79.65 GiB"), parse_bytes("1.5KB")
    (85523536281.6, 1500.0)
    """
    return _parse(field, text, _BYTES, _BYTES[bare_unit.lower()], "B, KB, MB, GB, TB, KiB, MiB, GiB, TiB")


def parse_seconds(text: str | float, field: str = "seconds") -> float:
    """Seconds from ``"15 ms"``, ``"200us"`` or a bare number of seconds.

    >>> parse_seconds("15 ms")
    0.015
    """
    return _parse(field, text, _SECONDS, 1.0, "s, ms, us, ns")


def _scaled(value: float, steps: tuple[tuple[str, float], ...]) -> str:
    """The value in the largest unit that leaves at least 1, four significant digits."""
    for unit, scale in steps:
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    unit, scale = steps[-1]
    return f"{value / scale:.4g} {unit}"


def show_bytes(value: float, *, binary: bool = False) -> str:
    """A size with its unit, decimal unless asked: ``13.48 GB``, or ``12.55 GiB``.

    >>> show_bytes(11173625856), show_bytes(11173625856, binary=True)
    ('11.17 GB', '10.41 GiB')
    """
    if binary:
        return _scaled(value, (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB), ("B", 1.0)))
    return _scaled(value, (("TB", TB), ("GB", GB), ("MB", MB), ("KB", KB), ("B", 1.0)))


def show_seconds(value: float) -> str:
    """A time with its unit: ``4.179 ms``, ``32 us``.

    >>> show_seconds(0.00417888), show_seconds(0.0)
    ('4.179 ms', '0 s')
    """
    if value == 0.0:
        return "0 s"
    return _scaled(value, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)))


def smaller(value: Numeric, limit: float) -> Numeric:
    """min(value, limit), elementwise where the value is an array."""
    if isinstance(value, (int, float)):
        return min(value, limit)
    import numpy as np

    return np.minimum(value, limit)
