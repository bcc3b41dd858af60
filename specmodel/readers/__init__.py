"""What people have at hand -> Model: config.json, a checkpoint folder, an index file, a GGUF file, a name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..model import Model

__all__ = ["load"]


def load(
    source: str | Path | Mapping[str, Any],
    weights: str | None = None,
    kv: str | None = None,
    name: str | None = None,
) -> Model:
    """The model that a file, a folder or a parsed config describes.

    Parameters
    ----------
    source : str, Path or mapping
        Path of a config.json or of the folder that holds one; or what such a file holds.
    weights, kv : str, optional
        Number formats to use instead of those the checkpoint declares.
    name : str, optional
        What to call it; the file's or folder's name otherwise.

    Raises
    ------
    InputError
        If it cannot be read, or describes no decoder that is known here; the key and the range are named.
    """
    from ..errors import InputError
    from . import json_file

    if isinstance(source, Mapping):
        return from_config(source, name or "config", "config").with_precision(weights, kv)
    path = Path(source).expanduser()
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise InputError("model", str(path.parent), "this folder holds no config.json")
    if not path.is_file():
        raise InputError("model", str(source), "no such file or folder")
    stem = path.parent.name if path.stem == "config" and path.parent.name else path.stem
    config = json_file.read_object(path)
    return from_config(config, name or stem, str(path)).with_precision(weights, kv)


def from_config(config: Mapping[str, Any], name: str, where: str) -> Model:
    """The model that a parsed config.json describes, its bytes counted."""
    from ..model import Model
    from . import hf, quantisation

    architecture, notes = hf.architecture(config, name, where)
    inner, outer = hf.unwrapped(config, where)
    precision, assumed = quantisation.precision(inner, outer, architecture.layer_count, where)
    notes += assumed + tuple(f"unverified: {reason}" for reason in architecture.unverified)
    model = Model(architecture, precision, 0.0, notes, where)
    from dataclasses import replace

    return replace(model, weight_bytes=float(sum(model.counted_bytes().values())))
