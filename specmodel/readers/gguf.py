"""The header of a GGUF file: keys, tensor types and sizes; no weight is read, nothing large is kept."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from specmodel.errors import InputError
from specmodel.formats import GGUF_TYPES, Block

HEADER_LIMIT_BYTES = 16 * 2**20
_MOST_ENTRIES = 2**17
_MOST_KEPT = 4096
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor info: name, elements, block type."""

    name: str
    elements: int
    block: Block

    @property
    def bytes(self) -> int:
        """Bytes it occupies."""
        return self.elements // self.block.elements * self.block.bytes


@dataclass(frozen=True, slots=True)
class ArrayLength:
    """An array too long to keep: only how many entries it has."""

    count: int


@dataclass(frozen=True, slots=True)
class Header:
    """Keys and tensors of one file."""

    keys: dict[str, Any]
    tensors: tuple[Tensor, ...]


class _Cursor:
    """Reads little-endian values from at most 16 MiB of a file."""

    def __init__(self, data: bytes, is_whole: bool, where: str) -> None:
        self.data, self.at, self.where = memoryview(data), 0, where
        self.ends = "the file ends inside its header" if is_whole else "its header is past 16 MiB"

    def refuse(self, why: str) -> NoReturn:
        raise InputError("model", self.where, f"no readable GGUF file: {why}")

    def take(self, count: int) -> memoryview:
        if count > len(self.data) - self.at:
            self.refuse(self.ends)
        piece = self.data[self.at : self.at + count]
        self.at += count
        return piece

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def text(self) -> str:
        length = self.number("<Q")
        return bytes(self.take(length)).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY or depth > 1:
            self.refuse(f"value type {kind} is unknown or nested too deeply")
        inner, count = self.number("<I"), self.number("<Q")
        smallest = struct.calcsize(_SCALARS[inner]) if inner in _SCALARS else 8
        if count * smallest > len(self.data) - self.at:
            self.refuse(self.ends)
        if inner in _SCALARS:
            raw = self.take(count * smallest)
            if count > _MOST_KEPT:
                return ArrayLength(count)
            return list(struct.unpack(f"<{count}{_SCALARS[inner][1]}", raw))
        if inner == _STRING and count > _MOST_KEPT:
            self.skip_texts(count)
            return ArrayLength(count)
        return [self.value(inner, depth + 1) for _ in range(count)]

    def skip_texts(self, count: int) -> None:
        """Step over strings without making any: vocabularies have hundreds of thousands."""
        unpack, data, at, end = struct.Struct("<Q").unpack_from, self.data, self.at, len(self.data)
        for _ in range(count):
            if at + 8 > end:
                self.refuse(self.ends)
            at += 8 + unpack(data, at)[0]
        if at > end:
            self.refuse(self.ends)
        self.at = at


def is_gguf(path: Path) -> bool:
    """Whether a file starts with the GGUF magic."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False


def header(path: Path) -> Header:
    """Keys and tensor infos of a GGUF file.

    Raises
    ------
    InputError
        If magic, version, counts, types or sizes are impossible, or the header ends early or is past
        16 MiB; no more than that is read.
    """
    where = str(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            data = file.read(min(size, HEADER_LIMIT_BYTES))
    except OSError as error:
        raise InputError("model", where, f"cannot be read: {error.strerror or error}") from None
    cursor = _Cursor(data, size <= HEADER_LIMIT_BYTES, where)
    if bytes(cursor.take(4)) != b"GGUF":
        cursor.refuse("it does not start with GGUF")
    version = cursor.number("<I")
    if version not in (2, 3):
        cursor.refuse(f"version {version}; 2 and 3 are known (little endian)")
    tensor_count, key_count = cursor.number("<Q"), cursor.number("<Q")
    if max(tensor_count, key_count) > _MOST_ENTRIES:
        cursor.refuse(f"{tensor_count} tensors and {key_count} keys; at most {_MOST_ENTRIES} of each")
    keys: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.text()
        if key in keys:
            cursor.refuse(f"key {key[:80]!r} comes twice")
        keys[key] = cursor.value(cursor.number("<I"))
    tensors = tuple(_tensor(cursor) for _ in range(tensor_count))
    return Header(keys, tensors)


def _tensor(cursor: _Cursor) -> Tensor:
    name = cursor.text()
    rank = cursor.number("<I")
    if not 1 <= rank <= 8:
        cursor.refuse(f"tensor {name[:80]!r} has {rank} dimensions")
    shape = [cursor.number("<Q") for _ in range(rank)]
    kind = cursor.number("<I")
    cursor.number("<Q")  # offset of its data, which is not read
    elements = math.prod(shape)
    if kind not in GGUF_TYPES:
        cursor.refuse(f"tensor {name[:80]!r} has the unknown type {kind}")
    block = GGUF_TYPES[kind]
    if not 0 < elements < 2**48 or shape[0] % block.elements:
        cursor.refuse(f"tensor {name[:80]!r} of {block.name} cannot have the shape {shape}")
    return Tensor(name, elements, block)
