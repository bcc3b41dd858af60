"""What people have at hand -> Model: config.json, a checkpoint folder, an index file, a GGUF file, a name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from specmodel.errors import InputError

if TYPE_CHECKING:
    from specmodel.model import Model, Totals

__all__ = ["find_model", "from_config", "load"]


def find_model(
    source: str | Path | Mapping[str, Any],
    weights: str | None = None,
    kv: str | None = None,
    name: str | None = None,
) -> Model | Totals:
    """The model that a name, a file, a folder or a parsed config stands for.

    Parameters
    ----------
    source : str, Path or mapping
        A file or folder where there is one of that path: config.json, a checkpoint folder, a safetensors
        file or index, a .gguf file. Else a name: catalogue id, alias, or hub id. Or what a config.json holds.
    weights, kv : str, optional
        Number formats to use instead of those the checkpoint declares.
    name : str, optional
        What to call it; the file's or folder's name otherwise.

    Returns
    -------
    Model, or Totals for a catalogue entry that is given as totals.

    Raises
    ------
    InputError
        If it is neither a file nor a known name, cannot be read, or is no decoder that is known here.
    """
    if isinstance(source, Mapping):
        return from_config(source, name or "config", "config").with_precision(weights, kv)
    if not str(source).strip():
        raise InputError("model", source, "a name or a path is expected")
    path = Path(source)
    if _exists(path):
        from specmodel.readers import files

        return files.read(path, name).with_precision(weights, kv)
    from specmodel.readers import catalogue

    text = str(source)
    entry = catalogue.lookup(text)
    if entry is not None:
        return catalogue.load_entry(entry, weights, kv)
    from specmodel.readers import hub

    if hub.looks_like_id(text) and not isinstance(source, Path):
        return hub.fetch(text).with_precision(weights, kv)
    return _refuse_name(text)


def load(
    source: str | Path | Mapping[str, Any],
    weights: str | None = None,
    kv: str | None = None,
    name: str | None = None,
) -> Model:
    """As ``find_model``, for callers that need an architecture: a model given as totals is refused."""
    from specmodel.model import Model

    found = find_model(source, weights, kv, name)
    if not isinstance(found, Model):
        raise InputError("model", str(source), "is given as totals only; this needs an architecture")
    return found


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _refuse_name(text: str) -> NoReturn:
    """No file and no known name: say which of the two it was taken for."""
    from specmodel.readers import catalogue

    if any(mark in text for mark in "/\\") or text.endswith((".json", ".gguf", ".safetensors")):
        raise InputError("model", text, "no such file or folder")
    catalogue.find(text)
    raise InputError("model", text, "no such file or name")


def from_config(
    config: Mapping[str, Any],
    name: str,
    where: str,
    notes: tuple[str, ...] = (),
    beside: Mapping[str, Any] | None = None,
) -> Model:
    """The model that a parsed config.json describes, its bytes counted.

    ``beside`` is what hf_quant_config.json holds, ``notes`` come first among the model's.
    """
    from dataclasses import replace

    from specmodel.model import Model
    from specmodel.readers import hf, quantisation

    decoder = hf.decoder(config, name, where)
    inner, outer = hf.unwrapped(config, where)
    precision, assumed = quantisation.precision(inner, outer, decoder.layers, where, beside)
    doubts = tuple(f"unverified: {reason}" for reason in decoder.architecture.unverified)
    model = Model(decoder.architecture, precision, 0.0, notes + decoder.notes + assumed + doubts, where)
    return replace(model, weight_bytes=float(sum(model.counted_bytes().values())))
