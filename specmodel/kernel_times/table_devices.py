"""Which device the rows of a measured table belong to: a gpu column, else the gpu comment, else what was asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specmodel import catalog
from specmodel.errors import InputError

if TYPE_CHECKING:
    from specmodel.datasheets import Device
    from specmodel.kernel_times.tables import Table


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """The rows of one device; without one, why, and whether that is a mistake in the file.

    A name that ends in "?" is none: the source of the times does not say which device it was.
    """

    device: Device | None
    table: Table
    reason: str = ""
    mistake: bool = False


def by_device(table: Table, asked: str | Device | None = None) -> Iterator[DeviceRows]:
    """The rows of each device, in order of first appearance; rows of an unknown one are given without a device.

    Raises
    ------
    InputError
        Where the whole file has no known device: which name, and where it was read.
    """
    column = table.texts["gpu"]
    if not np.any(column != ""):
        yield DeviceRows(_single(table, asked), table)
        return
    names = list(dict.fromkeys(column.tolist()))
    machines: dict[str, Device | None] = {}
    doubts: dict[str, InputError] = {}
    for name in names:
        line = int(table.lines[column == name][0])
        label = f"{table.file}, row {line}, column gpu"
        try:
            machines[name] = _known(name, label, asked)
        except InputError as error:
            machines[name], doubts[name] = None, error
    if len(doubts) == len(names) and not all(name.endswith("?") for name in names):
        raise next(error for name, error in doubts.items() if not name.endswith("?"))
    for name in names:
        reason = str(doubts[name]) if name in doubts else ""
        mistake = name in doubts and not name.endswith("?")
        yield DeviceRows(machines[name], table.where(column == name), reason, mistake)


def _single(table: Table, asked: str | Device | None) -> Device:
    if table.gpu:
        return _known(table.gpu, f"{table.file}, comment '# gpu {table.gpu}'", None)
    if asked is None:
        raise InputError("device", table.file, "has no gpu column and no '# gpu NAME' comment: give --device")
    return asked if not isinstance(asked, str) else catalog.device(asked)


def _known(name: str, label: str, asked: str | Device | None) -> Device:
    if not name and asked is not None:
        return asked if not isinstance(asked, str) else catalog.device(asked)
    if name.endswith("?"):
        raise InputError(label, name, "the source does not say which device it was")
    try:
        return catalog.device(name)
    except InputError as error:
        raise InputError(label, name, error.allowed) from None
