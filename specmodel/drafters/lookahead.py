"""Lookahead decoding: Jacobi iterations over a window of guesses, with a pool of n-grams seen on the way.

Greedy decoding solves a triangular system, each token from those before it. Jacobi iteration updates all
unknowns from the old values at once, so a pass fixes at least one more token and sometimes several.
"""

from __future__ import annotations

from collections.abc import Sequence

from specmodel import checks
from specmodel.errors import InputError

Row = Sequence[float]


def jacobi_sweep(matrix: Sequence[Row], right: Row, values: Row) -> list[float]:
    """One Jacobi round on ``matrix @ x = right``: every unknown from the old values of the others."""
    _square(matrix, right, values)
    return [_solve_row(matrix, right, values, row) for row in range(len(values))]


def gauss_seidel_sweep(matrix: Sequence[Row], right: Row, values: Row) -> list[float]:
    """The same one unknown after the other, each from the newest values: as plain decoding does."""
    _square(matrix, right, values)
    newest = list(values)
    for row in range(len(newest)):
        newest[row] = _solve_row(matrix, right, newest, row)
    return newest


def window_positions(window: int, ngram: int, guesses: int) -> int:
    """Positions that one pass scores, (W + G)(N - 1): the lookahead branch and the n-grams under test.

    References
    ----------
    .. [1] Y. Fu et al., "Break the sequential dependency of LLM inference using lookahead decoding",
       ICML 2024, arXiv:2402.02057, section 3: cost per step is that of (W + G)(N - 1) input tokens.
    """
    checks.whole("window", window, low=1)
    checks.whole("ngram", ngram, low=2)
    return (window + checks.whole("guesses", guesses)) * (ngram - 1)


def tokens_per_pass(tokens: float, passes: float) -> float:
    """Tokens confirmed per pass, which is the speedup while a pass costs what a plain step does.

    For an average over windows give the totals of both: the mean of their rates would be too high.
    """
    checks.real("tokens", tokens, low=0.0)
    return tokens / checks.real("passes", passes, low=0.0, above=True)


def mean_passes(hit_share: float, passes_hit: float, passes_cold: float) -> float:
    """Passes per window when a share of windows starts from n-grams in the pool."""
    share = checks.real("hit_share", hit_share, low=0.0, high=1.0)
    return share * passes_hit + (1.0 - share) * passes_cold


def positions_wasted(window: int, remaining: int) -> int:
    """Positions of a window that lie past the end of the text."""
    return max(0, checks.whole("window", window) - checks.whole("remaining", remaining))


def _solve_row(matrix: Sequence[Row], right: Row, values: Row, row: int) -> float:
    others = sum(
        a * x for column, (a, x) in enumerate(zip(matrix[row], values, strict=True)) if column != row
    )
    return (right[row] - others) / matrix[row][row]


def _square(matrix: Sequence[Row], right: Row, values: Row) -> None:
    size = len(values)
    if len(matrix) != size or len(right) != size or any(len(row) != size for row in matrix):
        raise InputError("matrix", matrix, f"must have {size} rows and columns, and a right side of {size}")
    if any(matrix[row][row] == 0.0 for row in range(size)):
        raise InputError("matrix", matrix, "must have no zero on its diagonal")
