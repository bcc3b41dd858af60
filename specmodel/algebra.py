"""The formulae, derived by SymPy rather than quoted: each proof is carried out when it is asked for.

SymPy is imported inside the functions, so that nothing else pays for it. A derivation carries its
expression, and ``function()`` turns that into an ordinary numeric function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specmodel.errors import unknown_name


@dataclass(frozen=True, slots=True, eq=False)
class Derivation:
    """One statement with the steps that prove it.

    ``expression`` is the SymPy form of the result and ``arguments`` the names of its free quantities, in
    the order that ``function()`` takes them.
    """

    topic: str
    name: str
    statement: str
    steps: tuple[str, ...]
    result: str
    latex: str
    expression: Any
    arguments: tuple[str, ...]

    def function(self) -> Callable[..., Any]:
        """The result as a function of numbers or arrays, in the order of ``arguments``."""
        import numpy as np
        import sympy as sp

        by_name = {symbol.name: symbol for symbol in self.expression.free_symbols}
        compiled = sp.lambdify(
            [by_name[name] for name in self.arguments], self.expression, ["scipy", "numpy"]
        )

        def evaluate(*values: Any) -> Any:
            # Both branches of a piecewise form are computed, also the one that divides by zero.
            with np.errstate(divide="ignore", invalid="ignore"):
                return np.real(compiled(*(np.asarray(value, dtype=float) for value in values)))

        return evaluate


def derive(topic: str | None = None) -> list[Derivation]:
    """All derivations, or those of one topic (`TOPICS`), proved on the spot."""
    if topic is None:
        return [derivation for build in TOPICS.values() for derivation in build()]
    if topic not in TOPICS:
        raise unknown_name("topic", topic, tuple(TOPICS))
    return TOPICS[topic]()


def exactness() -> list[Derivation]:
    """Rejection sampling keeps the target's law: min(p, q) + max(0, p - q) = p."""
    import sympy as sp

    p, q = sp.symbols("p q", positive=True)
    kept, left = sp.Min(p, q), sp.Max(0, p - q)
    steps = ["a token drafted with probability q > 0 is accepted with q*min(1, p/q) = min(q, p)"]
    short, over = sp.Symbol("d", nonnegative=True), sp.Symbol("d", positive=True)
    for name, case in (("p <= q, q = p + d", {q: p + short}), ("p > q, p = q + d", {p: q + over})):
        accepted, leftover = kept.subs(case), left.subs(case)
        _vanishes(accepted + leftover - p.subs(case))
        steps.append(
            f"if {name}: accepted {accepted}, left over {leftover}, together {accepted + leftover} = p"
        )
    _vanishes((kept + left).rewrite(sp.Piecewise) - p)
    identity = Derivation(
        "exactness",
        "identity",
        "what is accepted and what is left over add up to the target's probability, token by token",
        tuple(steps),
        "min(p, q) + max(0, p - q) = p",
        sp.latex(sp.Eq(kept + left, p, evaluate=False)),
        kept + left,
        ("p", "q"),
    )
    overlap = sp.Symbol("A", positive=True)
    sum_left = sp.solve(sp.Eq(overlap + sp.Symbol("R"), 1), sp.Symbol("R"))[0]
    law_out = kept + (1 - overlap) * left / sum_left
    _vanishes((law_out - p).rewrite(sp.Piecewise))
    law = Derivation(
        "exactness",
        "emitted law",
        "accept with min(1, p/q), otherwise draw from max(0, p - q) normalised: what is emitted has law p",
        (
            "sum the identity over all tokens: A + R = 1 with A = sum min(p, q), R = sum max(0, p - q)",
            f"so the chance of a rejection, 1 - A, is the mass left over: R = {sum_left}",
            "emitted = q*min(1, p/q) + (1 - A) * max(0, p - q)/R = min(p, q) + max(0, p - q) = p",
        ),
        "emitted = p",
        sp.latex(sp.Eq(kept + (1 - overlap) * left / sp.Symbol("R"), p, evaluate=False)),
        kept + left,
        ("p", "q"),
    )
    return [identity, law]


def series() -> list[Derivation]:
    """Tokens per round: the geometric series and its limits."""
    import sympy as sp

    alpha = sp.Symbol("alpha", positive=True)
    k, i = sp.Symbol("k", integer=True, nonnegative=True), sp.Symbol("i", integer=True, nonnegative=True)
    summed = sp.summation(alpha**i, (i, 0, k)).simplify()
    closed = (1 - alpha ** (k + 1)) / (1 - alpha)
    _vanishes(closed.subs(k, 0) - 1)
    _vanishes(closed.subs(k, k + 1) - closed - alpha ** (k + 1))
    sum_of_powers = Derivation(
        "series",
        "tokens per round",
        "draft i counts if all drafts up to it passed, alpha^i; the correction or bonus token is the 1",
        (
            f"E(k) = sum of alpha^i for i = 0..k = {summed}",
            "by induction: E(0) = 1, and E(k+1) - E(k) simplifies to alpha^(k+1)",
        ),
        "E = (1 - alpha^(k+1)) / (1 - alpha), and k + 1 at alpha = 1",
        sp.latex(sp.Eq(sp.Sum(alpha**i, (i, 0, k)), summed)),
        sp.Piecewise((k + 1, sp.Eq(alpha, 1)), (closed, True)),
        ("alpha", "k"),
    )
    rate = sp.Symbol("L", positive=True)  # alpha = exp(-L) < 1
    depth = sp.Symbol("k", positive=True)
    zero = sp.limit(closed.subs(k, depth), alpha, 0, "+")
    one = sp.limit(closed.subs(k, depth), alpha, 1)
    deep = sp.limit(closed.subs(k, depth).subs(alpha, sp.exp(-rate)), depth, sp.oo)
    ceiling = 1 / (1 - alpha)
    _vanishes(deep - ceiling.subs(alpha, sp.exp(-rate)))
    limits = Derivation(
        "series",
        "limits",
        "what a round yields with a hopeless draft, a perfect draft, and no end of drafting",
        (
            f"alpha -> 0: E -> {zero}",
            f"alpha -> 1: E -> {one}",
            f"k -> infinity with alpha = exp(-L) < 1: E -> {deep} = 1/(1 - alpha)",
        ),
        "1, k + 1, 1/(1 - alpha)",
        sp.latex(sp.Eq(sp.Limit(closed.subs(k, depth), depth, sp.oo), ceiling, evaluate=False)),
        ceiling,
        ("alpha",),
    )
    return [sum_of_powers, limits]


def depth() -> list[Derivation]:
    """When drafting pays, and when one more token does, while verification costs one plain step."""
    import sympy as sp

    alpha, c, k = _depth_symbols()
    speedup = _speedup()
    gain = (alpha - c) / (1 + c)
    _vanishes(speedup.subs(k, 1) - 1 - gain)
    first = Derivation(
        "depth",
        "first token",
        "drafting one token pays if and only if alpha > c",
        (f"S(k) = {speedup}", f"S(0) = 1 and S(1) - 1 = {gain}, which has the sign of alpha - c"),
        "alpha > c",
        sp.latex(sp.Eq(sp.Symbol("S_1") - 1, gain)),
        gain,
        ("alpha", "c"),
    )
    tokens = (1 - alpha ** (k + 1)) / (1 - alpha)
    margin = alpha ** (k + 1) * (1 + k * c) - c * tokens
    _vanishes(speedup.subs(k, k + 1) - speedup - margin / ((1 + k * c) * (1 + (k + 1) * c)))
    change = alpha ** (k + 1) * (alpha - 1) * (1 + (k + 1) * c)
    _vanishes(margin.subs(k, k + 1) - margin - change)
    one_more = Derivation(
        "depth",
        "one more token",
        "going from k to k + 1 pays if and only if alpha^(k+1) / E(k) > c / (1 + k c)",
        (
            f"S(k+1) - S(k) = ({margin}) / ((1 + k c)(1 + (k+1) c))",
            f"from k to k + 1 the numerator changes by {change} < 0,",
            "so the best k is the first at which it is not positive",
        ),
        "alpha^(k+1) (1 + k c) > c E(k)",
        sp.latex(sp.StrictGreaterThan(alpha ** (k + 1) * (1 + k * c), c * tokens)),
        margin,
        ("alpha", "c", "k"),
    )
    return [first, one_more]


def optimum() -> list[Derivation]:
    """The best depth over real k: where the derivative vanishes, and its closed form by Lambert's W."""
    import sympy as sp

    alpha, c, k = _depth_symbols()
    speedup = _speedup()
    log_alpha = sp.log(alpha)
    condition = alpha ** (k + 1) * (c - log_alpha * (1 + k * c)) - c
    _vanishes(sp.diff(speedup, k) * (1 - alpha) * (1 + k * c) ** 2 - condition)
    bend = sp.diff(condition, k)
    _vanishes(bend + alpha ** (k + 1) * log_alpha**2 * (1 + k * c))
    stationary = Derivation(
        "optimum",
        "condition",
        "the speedup has one maximum over real k, where alpha^(k+1) (c - ln(alpha) (1 + k c)) = c",
        (
            f"dS/dk * (1 - alpha) * (1 + k c)^2 = {condition}",
            f"the derivative of that is {sp.factor(bend)} < 0: it crosses zero once, from above",
        ),
        "alpha^(k+1) (c - ln(alpha) (1 + k c)) = c",
        sp.latex(sp.Eq(alpha ** (k + 1) * (c - log_alpha * (1 + k * c)), c)),
        condition,
        ("alpha", "c", "k"),
    )
    shift = 1 - log_alpha * (1 - c) / c
    branch = sp.Symbol("w", negative=True)  # w = W_-1(-exp(-shift)), that is w exp(w) = -exp(-shift)
    best_in_w = (shift + branch) / log_alpha - 1
    # alpha^(k+1) = exp(ln(alpha) (k+1)) = exp(shift + w) = -1/w by the definition of w.
    power = -1 / branch
    _vanishes(power * (c - log_alpha * (1 + best_in_w * c)) - c)
    _vanishes(log_alpha * (k + 1) - shift - (-1 + log_alpha * (k + 1 / c)))
    best = best_in_w.subs(branch, sp.LambertW(-sp.exp(-shift), -1))
    lambert = Derivation(
        "optimum",
        "Lambert form",
        "the best real depth in closed form; the integer optimum is one of its two neighbours",
        (
            f"put A = {shift} and w = ln(alpha) (k+1) - A, so that alpha^(k+1) = exp(A + w)",
            "the condition becomes -c w exp(A + w) = c, so w exp(w) = -exp(-A): w is a Lambert W of -exp(-A)",
            "w = -1 - |ln alpha| (k + 1/c) < -1: the branch is W_-1, real for c <= 1 (for c > 1 no k pays)",
            "put back, alpha^(k+1) = -1/w: the condition simplifies to 0 = 0",
        ),
        "k = (A + W_-1(-exp(-A))) / ln(alpha) - 1,  A = 1 - ln(alpha) (1 - c)/c",
        sp.latex(sp.Eq(k, best, evaluate=False)),
        best,
        ("alpha", "c"),
    )
    return [stationary, lambert]


def break_even() -> list[Derivation]:
    """The batch at which speculation stops paying on the textbook roofline, and the context without one."""
    import sympy as sp

    names = "weight_bytes kv_bytes bandwidth seconds_per_token tokens k c batch"
    weights, cache, bandwidth, compute, tokens, k, c, batch = sp.symbols(names, positive=True)
    plain = (weights + batch * cache) / bandwidth
    verify = batch * (k + 1) * compute
    rounds = {"none": verify, "scaled": verify * (1 + k * c), "added": verify + k * c * plain}
    gains = {"none": tokens, "scaled": tokens / (1 + k * c), "added": tokens - k * c}
    found = []
    for charge, cost in rounds.items():
        gain = gains[charge]
        solution = sp.solve(sp.Eq(tokens * plain, cost), batch)[0]
        closed = gain * weights / (bandwidth * ((k + 1) * compute - gain * cache / bandwidth))
        _vanishes(solution - closed)
        arguments = ["weight_bytes", "kv_bytes", "bandwidth", "seconds_per_token", "tokens", "k"]
        found.append(
            Derivation(
                "break-even",
                f"batch, charge {charge}",
                "memory-bound plain step, compute-bound verification: the batch at which a round of E tokens "
                "takes as long as E plain steps",
                (
                    f"plain step = {plain}; verification = {verify}; round = {cost}",
                    f"E x plain step = round, solved for the batch, with G = {gain}",
                    "consistent when 1 <= G: at the crossing verification takes G plain steps (so it is "
                    "compute-bound), and G <= E <= k + 1 keeps the plain step memory-bound",
                ),
                "batch = G W / (BW ((k+1) t - G kv / BW))",
                sp.latex(sp.Eq(batch, closed)),
                closed,
                tuple(arguments if charge == "none" else [*arguments, "c"]),
            )
        )
    per_token, context = sp.symbols("kv_bytes_per_token context", positive=True)
    gain = sp.Symbol("gain", positive=True)
    flip = sp.solve(sp.Eq((k + 1) * compute, gain * per_token * context / bandwidth), context)[0]
    found.append(
        Derivation(
            "break-even",
            "flip context",
            "past this context no batch loses: G readings of the cache take longer than k + 1 tokens",
            (
                "the denominator of the break-even batch, (k+1) t - G kv/BW, falls with the context",
                f"it reaches zero at context = {flip}, where the break-even batch goes to infinity",
            ),
            "context = (k+1) t BW / (G x KV bytes per token)",
            sp.latex(sp.Eq(context, flip)),
            flip,
            ("k", "seconds_per_token", "bandwidth", "gain", "kv_bytes_per_token"),
        )
    )
    return found


TOPICS: dict[str, Callable[[], list[Derivation]]] = {
    "exactness": exactness,
    "series": series,
    "depth": depth,
    "optimum": optimum,
    "break-even": break_even,
}


def _depth_symbols() -> tuple[Any, Any, Any]:
    import sympy as sp

    alpha, c, k = sp.symbols("alpha c k", positive=True)
    return alpha, c, k


def _speedup() -> Any:
    """Speedup of depth k when the draft costs c plain steps per token and verification one."""
    alpha, c, k = _depth_symbols()
    return (1 - alpha ** (k + 1)) / ((1 - alpha) * (1 + k * c))


def _vanishes(expression: Any) -> None:
    """A step of a proof: SymPy reduces the expression to zero."""
    import sympy as sp

    rest = sp.simplify(expression)
    assert rest == 0, f"not proved: {rest}"
