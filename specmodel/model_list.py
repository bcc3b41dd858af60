"""What `specmodel models` shows: one row per model, with what follows from its shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specmodel import catalog
from specmodel.errors import InputError
from specmodel.model import Totals


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model. `kv_bytes_per_token` counts layers without a window. [elements, FLOP, B]"""

    id: str
    parameters: int | None
    active_parameters: int | None
    flops_per_token: float | None
    kv_bytes_per_token: float | None
    weight_bytes: float | None
    source: str
    confidence: str
    notes: tuple[str, ...]


def model_rows(names: Sequence[str] | None = None) -> list[ModelRow]:
    """The models asked for, or all of the catalogue; one that is refused there keeps its row, with the reason."""
    if names is not None:
        return [_row(name) for name in names]
    rows = []
    for name in catalog.models():
        try:
            rows.append(_row(name))
        except InputError as error:
            rows.append(ModelRow(name, None, None, None, None, None, "", "refused", (str(error),)))
    return rows


def _row(name: str) -> ModelRow:
    model = catalog.model(name)
    if isinstance(model, Totals):
        return ModelRow(
            model.name, None, None, model.flops_per_token, model.kv_bytes_per_token, model.weight_bytes,
            model.source, "totals", model.notes,
        )  # fmt: skip
    shape = model.architecture
    return ModelRow(
        name,
        shape.parameters,
        shape.active_parameters,
        shape.flops_per_token,
        model.kv_bytes_per_token,
        model.weight_bytes,
        model.source,
        "unverified" if shape.unverified else "checked",
        model.notes,
    )
