"""One draft pass as kernels: a draft model, the target over a sparse cache, a head, an MTP module.

Built from the same pieces as the target's passes, so that a draft is timed the way its target is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specmodel.architecture import Architecture, Mtp
from specmodel.layers.matrices import Matrix
from specmodel.model import Model
from specmodel.passes import PassBuilder, Split, forward_pass
from specmodel.roofline import Kernel

if TYPE_CHECKING:
    from specmodel.drafters.heads import DraftHead
    from specmodel.units import Numeric


@dataclass(frozen=True, slots=True)
class DraftPass:
    """`count` equal draft passes of `layers` layers that run one after the other."""

    kernels: tuple[Kernel, ...]
    count: float = 1.0
    layers: float = 1.0


def model_pass(
    draft: Model, *, batch: Numeric, context: Numeric, width: Numeric = 1, split: Split
) -> DraftPass:
    """One pass of a draft model of its own."""
    kernels = forward_pass(draft, batch=batch, context=context, width=width, split=split)
    return DraftPass(tuple(kernels), layers=draft.architecture.layer_count)


def early_exit_pass(
    target: Model, layers: int, *, batch: Numeric, context: Numeric, split: Split
) -> DraftPass:
    """The first `layers` layers of the target and its head, one position per sequence."""
    share = min(1.0, layers / target.architecture.layer_count)
    kernels = forward_pass(target, batch=batch, context=context, split=split)
    *inner, head = kernels
    # Counts become fractions of the groups: a mixture of layer kinds is left at its average.
    shortened = [replace(kernel, count=max(1, round(kernel.count * share))) for kernel in inner]
    return DraftPass((*shortened, head), layers=layers)


def head_pass(
    head: DraftHead,
    target: Model,
    *,
    batch: Numeric,
    context: Numeric,
    width: Numeric = 1,
    predicted: Numeric = 1,
    fused: bool = False,
    split: Split,
) -> DraftPass:
    """One pass of a head that rides on the target.

    Parameters
    ----------
    width : float or ndarray
        Positions per sequence that its layers process: 1 in a chain, the branching factor in a tree, and all verified
        positions in the first pass of a round, which catches up on what was accepted.
    predicted : float or ndarray
        Positions per sequence that its output head scores.
    fused : bool
        Whether the target's hidden states are projected in this pass. EAGLE does it in every pass, EAGLE-3 in the
        first of a round.
    """
    stored = target.precision.of("mtp") if "mtp" in target.precision.parts else target.precision.of("head")
    shape = Architecture(head.name, "draft head", head.hidden, head.head.rows, (), tied=True)
    model = replace(target, architecture=shape, precision=replace(target.precision, weights=stored, parts={}))
    over_layers = PassBuilder(model, batch, context, width, split)
    over_head = PassBuilder(model, batch, context, predicted, split)
    kernels: list[Kernel] = []
    if fused and head.fusion is not None:
        kernels.append(over_layers.gemm(head.fusion, 1))
    for count, layer in head.layers:
        kernels += [over_layers.gemm(matrix, count) for matrix in head.layer_matrices(layer)]
        if layer.mixer is not None:
            kernels.append(over_layers.attention(layer.mixer, count))  # type: ignore[arg-type]  # heads have softmax
        kernels += over_layers.around(2 * count, head.hidden)
    if head.others:
        kernels += [over_head.gemm(matrix, count) for count, matrix in head.others]
    else:
        kernels.append(over_head.gemm(head.head, 1))
    return DraftPass(tuple(kernels), layers=max(1, sum(count for count, _ in head.layers)))


def mtp_pass(
    mtp: Mtp, target: Model, *, batch: Numeric, context: Numeric, width: Numeric = 1, split: Split
) -> DraftPass:
    """One pass of a multi-token-prediction module: 2H -> H, a decoder layer, the target's head."""
    module = target.precision.of("mtp")
    precision = replace(
        target.precision, parts={**target.precision.parts, "dense": module, "attention": module}
    )
    builder = PassBuilder(replace(target, precision=precision), batch, context, width, split)
    kernels = [builder.gemm(Matrix("mtp projection", mtp.hidden, 2 * mtp.hidden, "mtp"), 1)]
    kernels += builder.layer(mtp.layer, 1)
    last = replace(builder, width=1)
    kernels.append(last.gemm(target.architecture.head, 1))
    return DraftPass(tuple(kernels))
