"""Headers and index of safetensors checkpoints: what each tensor occupies, no weight ever read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specmodel.errors import InputError
from specmodel.readers import json_file

HEADER_LIMIT_BYTES = 16 * 2**20
_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4,
    "F6_E2M3": 6, "F6_E3M2": 6, "I64": 64, "U64": 64, "I32": 32, "U32": 32, "I16": 16, "U16": 16,
    "I8": 8, "U8": 8, "BOOL": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a file: its name, its bytes, and the elements of its container type."""

    name: str
    bytes: int
    elements: int


def header(path: Path) -> list[Stored]:
    """Tensors of one safetensors file, from its header alone.

    Raises
    ------
    InputError
        If the header's length is past the file or 16 MiB, it is not the JSON it must be, or an offset,
        shape or dtype is impossible.
    """
    where = str(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 10 or length > min(HEADER_LIMIT_BYTES, size - 8):
                allowed = f"its header claims {length} bytes; at most 16 MiB, and no more than the file"
                raise InputError("model", where, allowed)
            raw = file.read(length)
    except OSError as error:
        raise InputError("model", where, f"cannot be read: {error.strerror or error}") from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("model", where, "no safetensors file: its header is not UTF-8") from None
    tensors = json_file.parse_object(text, where)
    return [_stored(name, entry, where) for name, entry in tensors.items() if name != "__metadata__"]


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _stored(tensor: str, entry: Any, where: str) -> Stored:
    name = json_file.shown(tensor)
    if not isinstance(entry, dict):
        raise InputError(name, entry, f"dtype, shape and data_offsets are expected ({where})")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise InputError(f"{name}.dtype", dtype, f"one of {', '.join(_BITS)} ({where})")
    if not isinstance(shape, list) or len(shape) > 16 or not all(map(_whole, shape)):
        raise InputError(f"{name}.shape", shape, f"a list of sizes >= 0 ({where})")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_whole, offsets)):
        raise InputError(f"{name}.data_offsets", offsets, f"two offsets >= 0 ({where})")
    elements = math.prod(shape)
    size = offsets[1] - offsets[0]
    if size != -(-elements * _BITS[dtype] // 8):
        allowed = f"must span the {elements} elements of {dtype} in its shape ({where})"
        raise InputError(f"{name}.data_offsets", offsets, allowed)
    return Stored(tensor, size, elements)


@dataclass(frozen=True, slots=True)
class Index:
    """A model.safetensors.index.json: the sum of tensor bytes (None where it says 0), tensors, files."""

    total_bytes: float | None
    tensors: tuple[str, ...]
    files: tuple[str, ...]


def index(held: Mapping[str, Any], where: str) -> Index:
    """What an index holds.

    Raises
    ------
    InputError
        If ``weight_map`` or ``total_size`` is malformed, or a file lies outside the folder.
    """
    weight_map = held.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise InputError("weight_map", weight_map, f"an object of tensor names and files ({where})")
    files = tuple(sorted(set(weight_map.values())))
    for file in files:
        if not file or Path(file).name != file or file in (".", ".."):
            raise InputError("weight_map", file, f"a file name in the same folder ({where})")
    metadata = held.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if total is None or total == 0:
        return Index(None, tuple(weight_map), files)
    if isinstance(total, bool) or not isinstance(total, (int, float)) or not 0 < total < 1e18:
        raise InputError("total_size", total, f"bytes, above 0 ({where})")
    return Index(float(total), tuple(weight_map), files)


def shards(paths: list[Path]) -> Iterator[Stored]:
    """Tensors of several files."""
    for path in paths:
        yield from header(path)
