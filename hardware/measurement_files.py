"""Files of a measurement: one CSV per kind, whole at every moment, and never written by two runs at once.

A row is appended in one write and forced to disk, so an interrupted run leaves all that it measured. The next
run with the same machine, versions and kernels takes up where it ended.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specmodel.errors import InputError
from specmodel.hardware.machine import COLUMNS, KINDS, Kind

TIME_COLUMNS = ("us", "spread", "samples")
_MARK = "# provenance "


def prefix_of(out: str | os.PathLike[str]) -> Path:
    """What all files of a measurement start with: ``out`` without .csv, .json or .toml.

    Raises
    ------
    InputError
        For a folder that does not exist, or a path that is a folder.
    """
    path = Path(out)
    if path.suffix in (".csv", ".json", ".toml"):
        path = path.with_suffix("")
    if not path.name or path.is_dir():
        raise InputError("out", str(out), "must be a file name, such as results.csv, not a folder")
    if not path.parent.is_dir():
        raise InputError("out", str(out), f"the folder {str(path.parent)!r} does not exist")
    return path


class Tables:
    """The CSV files of one measurement, by kind, open for appending rows.

    Parameters
    ----------
    prefix : Path
        Start of the file names.
    comments : sequence of str
        Lines to put before the header, without their mark.
    provenance : str
        What has to be equal for rows to belong together.

    Raises
    ------
    InputError
        Where a file of that name holds rows of another provenance, or cannot be written.
    """

    def __init__(self, prefix: Path, comments: Sequence[str], provenance: str) -> None:
        self.paths: dict[Kind, Path] = {kind: prefix.with_name(f"{prefix.name}-{kind}.csv") for kind in KINDS}
        self.done: dict[Kind, dict[tuple[str, ...], float]] = {kind: {} for kind in KINDS}
        head = [f"# {line}" for line in comments] + [_MARK + provenance]
        kept = {kind: self._read(path, kind, provenance) for kind, path in self.paths.items()}
        for kind, path in self.paths.items():  # only after all were found good
            if kept[kind] is None:
                header = ",".join((*COLUMNS[kind], *TIME_COLUMNS))
                _replace(path, "\n".join([*head, header]) + "\n")

    def _read(self, path: Path, kind: Kind, provenance: str) -> bool | None:
        """Take over the rows of an earlier run; None where there is no file."""
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError):
            raise InputError("out", str(path), "is there already and is no measurement") from None
        lines = text.splitlines()
        header = ",".join((*COLUMNS[kind], *TIME_COLUMNS))
        if header not in lines or f"{_MARK}{provenance}" not in lines:
            raise InputError(
                "out", str(path), "holds another machine's or version's measurement: choose another name"
            )
        if not text.endswith("\n"):  # a write that was cut short
            _replace(path, text[: text.rfind("\n") + 1])
            lines = lines[:-1]
        for line in lines[lines.index(header) + 1 :]:
            fields = tuple(line.split(","))
            self.done[kind][fields[: len(COLUMNS[kind])]] = float(fields[len(COLUMNS[kind])]) * 1e-6
        return True

    def append(self, kind: Kind, fields: Sequence[str], seconds: float, spread: float, samples: int) -> None:
        """Add one row: its fields, the median time, its relative spread, how many samples."""
        row = [*fields, f"{seconds * 1e6:.4g}", f"{spread:.3f}", str(samples)]
        handle = os.open(self.paths[kind], os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, (",".join(row) + "\n").encode())
            os.fsync(handle)
        finally:
            os.close(handle)
        self.done[kind][tuple(fields)] = seconds


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON file, replaced whole."""
    _replace(path, json.dumps(content, indent=2, default=str) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The content of such a file; empty where there is none or it is not readable."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_text(path: Path, text: str) -> None:
    """A text file, replaced whole."""
    _replace(path, text)


def _replace(path: Path, text: str) -> None:
    """Write beside, then rename: readers see the old file or the new one, never half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InputError("out", str(path), f"cannot be written: {error.strerror}") from None


@contextmanager
def alone(prefix: Path) -> Iterator[None]:
    """Hold the measurement's lock file; a second run with the same name is refused.

    The lock belongs to the process, not to the file's presence: when a run dies, however it dies, the system
    lets go of it, so nothing has to be cleaned up by hand.

    Raises
    ------
    InputError
        While another process holds it.
    """
    path = prefix.with_name(f"{prefix.name}.lock")
    handle = _locked(path)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0) if hasattr(os, "pwrite") else None
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _locked(path: Path) -> int:
    """An open handle on the lock file, locked."""
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError("out", str(path), f"cannot be written: {error.strerror}") from None
        if not _try_lock(handle):
            holder = os.read(handle, 20).decode(errors="replace") or "unknown"
            os.close(handle)
            raise InputError("out", str(path), f"another measurement is writing there (process {holder})")
        try:  # the file may have been removed by the last holder between opening and locking it
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
