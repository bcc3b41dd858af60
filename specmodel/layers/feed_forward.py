"""What follows the mixer in a layer: one dense feed-forward, or experts of which a router picks a few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from specmodel.layers.matrices import Matrix

if TYPE_CHECKING:
    from specmodel.units import Numeric

_WIDTH = "feed-forward columns"


def _pair(prefix: str, width: int, hidden: int, gated: bool, part: str) -> tuple[Matrix, Matrix]:
    """Up (with its gate fused) and down."""
    up = "gate_up" if gated else "up"
    return (
        Matrix(prefix + up, width * (2 if gated else 1), hidden, part, "rows", units=width, unit=_WIDTH),
        Matrix(prefix + "down", hidden, width, part, "columns", units=width, unit=_WIDTH),
    )


@dataclass(frozen=True, slots=True)
class Dense:
    """A feed-forward of one width; ``gated`` means three matrices, else two."""

    width: int
    gated: bool = True
    small_elements: int = 0

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Up (with its gate fused) and down."""
        return _pair("", self.width, hidden, self.gated, "dense")

    def parameters(self, hidden: int) -> int:
        """All weights, biases included."""
        return sum(matrix.elements for matrix in self.matrices(hidden)) + self.small_elements

    def active_parameters(self, hidden: int) -> int:
        """The same: every token uses all of them."""
        return self.parameters(hidden)


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: each token passes through ``top_k`` of ``count``, and the shared one.

    Attributes
    ----------
    count, top_k : int
        Routed experts, and how many of them a token uses.
    width : int
        Feed-forward width of one routed expert.
    shared_width : int
        Width of what every token uses: all shared experts together, or a dense feed-forward beside.
    shared_gate : bool
        The shared expert is scaled by a gate of ``hidden`` weights.
    small_elements : int
        Biases of the router.
    expert_small_elements : int
        Biases of one expert.
    """

    count: int
    top_k: int
    width: int
    shared_width: int = 0
    shared_gate: bool = False
    gated: bool = True
    small_elements: int = 0
    expert_small_elements: int = 0

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """Router and shared expert, read by every token; the shared expert's one-row gate is not listed."""
        router = (Matrix("router", self.count, hidden, "router"),)
        if not self.shared_width:
            return router
        return router + _pair("shared_", self.shared_width, hidden, self.gated, "shared_experts")

    def expert_matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """The matrices of one routed expert."""
        return _pair("expert_", self.width, hidden, self.gated, "experts")

    def expert_parameters(self, hidden: int) -> int:
        """Weights of one routed expert, biases left out."""
        return sum(matrix.elements for matrix in self.expert_matrices(hidden))

    def gate_elements(self, hidden: int) -> int:
        """Weights of the gate on the shared expert."""
        return hidden if self.shared_gate else 0

    def _always(self, hidden: int) -> int:
        listed = sum(matrix.elements for matrix in self.matrices(hidden))
        return listed + self.gate_elements(hidden) + self.small_elements

    def parameters(self, hidden: int) -> int:
        """All weights of all experts, biases included."""
        one = self.expert_parameters(hidden) + self.expert_small_elements
        return self._always(hidden) + self.count * one

    def active_parameters(self, hidden: int) -> int:
        """Weights that one token uses."""
        one = self.expert_parameters(hidden) + self.expert_small_elements
        return self._always(hidden) + self.top_k * one

    def expected_distinct(self, tokens: Numeric) -> Numeric:
        """Routed experts that at least one of ``tokens`` tokens uses, in expectation.

        .. math:: E (1 - (1 - k/E)^T)

        Exact for tokens that choose independently, every expert as likely as the next; real routing is
        correlated between neighbouring tokens and touches fewer.

        Examples
        --------
        Four tokens of a model that picks 10 of 512:

        >>> f"{Experts(512, 10, 1024).expected_distinct(4):.2f}"
        '38.84'
        """
        return self.count * (1.0 - (1.0 - self.top_k / self.count) ** tokens)


FeedForward: TypeAlias = Dense | Experts
