"""Text from files, gzip files and standard input, in blocks of lines; memory bounded."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from specmodel.errors import InputError

Progress = Callable[[int, int | None], None]
"""Called with the bytes read so far and the bytes in all (None where unknown, as on standard input)."""

BLOCK_BYTES = 1 << 20
LONGEST_LINE = 256 << 20  # a whole benchmark report is one line of some megabytes at most
HEAD_BYTES = 1 << 16
PACKED = {b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip"}


@dataclass(frozen=True, slots=True)
class Block:
    """Some whole lines, without their line ends; `first` is the number of the first of them, from 1."""

    first: int
    lines: list[str]


class Source:
    """One thing to read. Use as a context manager, look at `head`, then go through `blocks()` once."""

    def __init__(self, where: str | Path | BinaryIO, progress: Progress | None = None) -> None:
        self.progress = progress
        self.total: int | None = None
        self.broken: str | None = None  # why the text ended before its end
        if isinstance(where, str | Path) and str(where) != "-":
            path = Path(where)
            self.name = str(where)
            if path.is_dir():
                raise InputError("evidence", self.name, "a folder; give the files in it")
            try:
                raw: BinaryIO = path.open("rb")
                self.total = path.stat().st_size
            except OSError as error:
                raise InputError("evidence", self.name, f"cannot be read: {error.strerror}") from None
            self._own = True
        else:
            raw = sys.stdin.buffer if isinstance(where, str | Path) else where
            name = getattr(where, "name", None)
            self.name = name if isinstance(name, str) and name else "standard input"
            self._own = False
        self._raw = raw
        self._done = 0
        start = self._read_raw(HEAD_BYTES)
        for magic, packer in PACKED.items():
            if start.startswith(magic):
                raise self._refusal(f"{packer} file; unpack it first (gzip is read as it is)")
        self.gzipped = start.startswith(b"\x1f\x8b")
        self._pending = start
        self._unpacked = gzip.GzipFile(fileobj=_Joined(start, self)) if self.gzipped else None
        self._head = self._read(HEAD_BYTES)
        self.parquet = start.startswith(b"PAR1")
        if not self.parquet:
            self._check_text()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own:
            self._raw.close()

    @property
    def head(self) -> str:
        """The beginning of the text."""
        return self._head.decode("utf-8-sig", errors="replace")

    def blocks(self) -> Iterator[Block]:
        """All lines. A stream that breaks off sets `broken` and ends."""
        number, rest = 1, b""
        data = self._head.removeprefix(b"\xef\xbb\xbf")
        while data:
            whole, newline, tail = (rest + data).rpartition(b"\n")
            if newline:
                lines = whole.decode("utf-8", errors="replace").split("\n")
                yield Block(number, [line.removesuffix("\r") for line in lines])
                number += len(lines)
            rest = tail
            if len(rest) > LONGEST_LINE:
                raise InputError(
                    "evidence", f"{self.name}:{number}", f"a line of more than {LONGEST_LINE >> 20} MiB"
                )
            data = self._read(BLOCK_BYTES)
        if rest:
            yield Block(number, [rest.decode("utf-8", errors="replace").removesuffix("\r")])

    def _read(self, size: int) -> bytes:
        if self.broken:
            return b""
        if self._unpacked is None:
            data, self._pending = self._pending, b""
            return data or self._read_raw(size)
        parts: list[bytes] = []
        try:  # read1, because read loses what was unpacked before the damage
            while size > 0 and (data := self._unpacked.read1(size)):
                parts.append(data)
                size -= len(data)
        except (EOFError, OSError, zlib.error) as error:
            self.broken = f"gzip stream is damaged or cut off ({error})"
        return b"".join(parts)

    def _read_raw(self, size: int) -> bytes:
        data = self._raw.read(size)
        if isinstance(data, str):  # a text stream, as io.StringIO
            data = data.encode()
        self._done += len(data)
        if self.progress is not None:
            self.progress(self._done, self.total)
        return data

    def _check_text(self) -> None:
        head = self._head
        if head.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise self._refusal("UTF-16 text; convert it to UTF-8")
        if b"\0" in head:
            raise self._refusal("binary file; logs, metrics, JSON and CSV are text")
        if not head.strip() and len(head) < HEAD_BYTES:
            raise self._refusal(self.broken or "empty file")
        if head.decode("utf-8", errors="replace").count("\ufffd") * 10 > len(head):
            raise self._refusal("binary file; logs, metrics, JSON and CSV are text")

    def _refusal(self, why: str) -> InputError:
        if self._own:
            self._raw.close()
        return InputError("evidence", self.name, why)


class _Joined(io.RawIOBase):
    """The bytes already read from a source, then the rest of it."""

    def __init__(self, start: bytes, source: Source) -> None:
        self._start = start
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        size = len(buffer)
        if self._start:
            data, self._start = self._start[:size], self._start[size:]
        else:
            data = self._source._read_raw(size)
        buffer[: len(data)] = data
        return len(data)
