"""Number formats: what a weight or a cached element occupies, scales included, and the peak it runs at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from specmodel.errors import InputError, unknown_name


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """How numbers are stored, and which dense peak a matrix product with such weights runs at.

    Attributes
    ----------
    name : str
        Canonical name, lower case.
    bits : float
        Stored bits per element, scales and zero points included.
    rate : str
        Peak of the matrix product: "bf16", "fp8", "int8" or "fp4". A device without that peak falls
        back to 16 bit.
    weight_only : bool
        Dequantised to 16 bit before multiplying: bandwidth as stored, arithmetic at the 16-bit rate.
    source : str
        Where the bits come from.
    """

    name: str
    bits: float
    rate: str
    weight_only: bool
    source: str

    @property
    def bytes(self) -> float:
        """Stored bytes per element."""
        return self.bits / 8.0


@dataclass(frozen=True, slots=True)
class Block:
    """A GGUF tensor type: how many elements one block holds and the bytes it takes."""

    name: str
    id: int
    elements: int
    bytes: int

    @property
    def bits(self) -> float:
        """Bits per element."""
        return 8.0 * self.bytes / self.elements


def _blocks(rows: str) -> Mapping[int, Block]:
    """The table below, by type id."""
    found = {}
    for row in rows.split("\n"):
        name, number, elements, size = row.split()
        found[int(number)] = Block(name, int(number), int(elements), int(size))
    return MappingProxyType(found)


# ggml type name, id in the file, elements per block, bytes per block; ids 4, 5, 31-33, 36-38 were removed.
GGUF_TYPES: Mapping[int, Block] = _blocks(
    """f32 0 1 4
f16 1 1 2
q4_0 2 32 18
q4_1 3 32 20
q5_0 6 32 22
q5_1 7 32 24
q8_0 8 32 34
q2_k 10 256 84
q3_k 11 256 110
q4_k 12 256 144
q5_k 13 256 176
q6_k 14 256 210
q8_k 15 256 292
iq2_xxs 16 256 66
iq2_xs 17 256 74
iq3_xxs 18 256 98
iq1_s 19 256 50
iq4_nl 20 32 18
iq3_s 21 256 110
iq2_s 22 256 82
iq4_xs 23 256 136
i8 24 1 1
i16 25 1 2
i32 26 1 4
i64 27 1 8
f64 28 1 8
iq1_m 29 256 56
bf16 30 1 2
tq1_0 34 256 54
tq2_0 35 256 66
mxfp4 39 32 17
nvfp4 40 64 36
q1_0 41 128 18
q2_0 42 64 18"""
)

# File-level averages of llama.cpp's mixes, measured by its quantize tool on Llama-3.1-8B. A larger model
# has a lower average, so a file at hand always wins over these.
_GGUF_MIXES = {
    "q2_k_s": 2.97,
    "q3_k_s": 3.64,
    "q3_k_m": 4.00,
    "q3_k_l": 4.30,
    "q4_k_s": 4.67,
    "q4_k_m": 4.89,
    "q5_k_s": 5.57,
    "q5_k_m": 5.70,
    "iq2_m": 2.93,
    "iq3_xs": 3.50,
    "iq3_m": 3.76,
}

_LAYOUT = "bits of the stored layout"
_FORMATS = {
    entry.name: entry
    for entry in (
        NumberFormat("fp32", 32.0, "bf16", False, "IEEE 754 single; engines multiply it in 16 bit"),
        NumberFormat("bf16", 16.0, "bf16", False, "bfloat16"),
        NumberFormat("fp16", 16.0, "bf16", False, "IEEE 754 half"),
        NumberFormat("fp8", 8.0, "fp8", False, "e4m3, one scale per tensor or channel"),
        NumberFormat("fp8-block", 8.0 + 32 / 128**2, "fp8", False, "one float32 scale per 128 x 128 block"),
        NumberFormat("fp8-wo", 8.0, "bf16", True, "fp8 weights, 16-bit activations"),
        NumberFormat("int8", 8.0, "int8", False, "one scale per channel, 8-bit activations"),
        NumberFormat("int8-wo", 8.0, "bf16", True, "one scale per channel, 16-bit activations"),
        NumberFormat("int4", 4.0, "bf16", True, "4 bits without any scale: the ideal, no real file"),
        NumberFormat("int4-g128", 4.0 + 16 / 128, "bf16", True, "one 16-bit scale per 128, symmetric"),
        NumberFormat("int4-g64", 4.0 + 16 / 64, "bf16", True, "one 16-bit scale per 64, symmetric"),
        NumberFormat("int4-g32", 4.0 + 16 / 32, "bf16", True, "one 16-bit scale per 32, symmetric"),
        NumberFormat("awq", 4.0 + 20 / 128, "bf16", True, "16-bit scale and 4-bit zero point per 128"),
        NumberFormat("gptq", 4.0 + 20 / 128, "bf16", True, "16-bit scale and 4-bit zero point per 128"),
        NumberFormat("nvfp4", 4.0 + 8 / 16, "fp4", False, "one fp8 scale per 16"),
        NumberFormat("nvfp4-wo", 4.0 + 8 / 16, "bf16", True, "nvfp4 weights, 16-bit activations"),
        NumberFormat("mxfp4", 4.0 + 8 / 32, "bf16", True, "one 8-bit exponent per 32, 16-bit activations"),
        NumberFormat("mxfp8", 8.0 + 8 / 32, "fp8", False, "one 8-bit exponent per 32"),
        NumberFormat("nf4", 4.0 + 32 / 64, "bf16", True, "one float32 scale per 64"),
        NumberFormat("nf4-double", 4.0 + 8 / 64 + 32 / (64 * 256), "bf16", True, "nf4, its scales in 8 bits"),
    )
}
_GGUF_ONLY = set()
for _block in GGUF_TYPES.values():
    if _block.name not in _FORMATS and _block.name[0] in "qit" and _block.elements > 1:
        _layout = f"GGUF block of {_block.bytes} bytes for {_block.elements} weights"
        _FORMATS[_block.name] = NumberFormat(_block.name, _block.bits, "bf16", True, _layout)
        _GGUF_ONLY.add(_block.name)
for _mix, _bits in _GGUF_MIXES.items():
    _average = "GGUF mix, average over Llama-3.1-8B; larger models are lower"
    _FORMATS[_mix] = NumberFormat(_mix, _bits, "bf16", True, _average)

_ALIASES = {
    "float32": "fp32",
    "f32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "f16": "fp16",
    "half": "fp16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8": "fp8",
    "w8a8": "int8",
    "w8a16": "int8-wo",
    "w4a16": "int4-g128",
    "int4_wo": "int4-g128",
    "w4a16_nvfp4": "nvfp4-wo",
    "w4a16_mxfp4": "mxfp4",
    "fp4": "nvfp4",
    "bnb": "nf4",
}


def _folded(name: str) -> str:
    return name.strip().casefold().replace("_", "-")


_BY_FOLDED = {_folded(name): name for name in _FORMATS} | {
    _folded(alias): name for alias, name in _ALIASES.items()
}


def number_format(name: str, field: str = "format") -> NumberFormat:
    """The number format of that name; case, ``-`` and ``_`` do not matter.

    Raises
    ------
    InputError
        If no format has that name; the nearest ones are given.
    """
    found = _BY_FOLDED.get(_folded(name)) if isinstance(name, str) else None
    if found is None:
        raise unknown_name(field, name, format_names())
    return _FORMATS[found]


def gguf_ends(weights: NumberFormat) -> tuple[NumberFormat, NumberFormat] | None:
    """Formats of the embedding and of the head in a GGUF file whose layers have that format; None for others.

    llama.cpp's quantize tool narrows both: the embedding like the layers, the head to q6_k at least. A mix is an
    average over the whole file, both included.

    Examples
    --------
    >>> [part.name for part in gguf_ends(number_format("q4_0"))], gguf_ends(number_format("awq"))
    (['q4_0', 'q6_k'], None)
    """
    if weights.name in _GGUF_MIXES:
        return weights, weights
    if weights.name not in _GGUF_ONLY:
        return None
    head = _FORMATS["q6_k"]
    return weights, head if weights.bits < head.bits else weights


def format_names() -> list[str]:
    """Every canonical name, in the order of the table."""
    return list(_FORMATS)


def custom_format(name: str, bits: float, rate: str, weight_only: bool, source: str) -> NumberFormat:
    """A format whose scales are laid out in a way that no entry of the table has."""
    if not 0.0 < bits <= 64.0:
        raise InputError("bits", bits, "above 0, at most 64")
    return NumberFormat(name, bits, rate, weight_only, source)


def weight_bytes(parameters: float, weight_format: NumberFormat | str) -> float:
    """Bytes of that many weights, all in one format.

    Examples
    --------
    Llama-2-7B in 4 bits with one 16-bit scale per 128 weights:

    >>> f"{weight_bytes(6_738_415_616, 'int4-g128') / 1e9:.2f} GB"
    '3.47 GB'
    """
    if not parameters >= 0.0:
        raise InputError("parameters", parameters, "must be >= 0")
    chosen = number_format(weight_format) if isinstance(weight_format, str) else weight_format
    return parameters * chosen.bytes


def weight_stream_tokens_per_second(weight_bytes: float, *, bandwidth_bytes_per_s: float) -> float:
    """The ceiling of plain decoding at batch 1: every weight read once per token, nothing else.

    Examples
    --------
    >>> weight_stream_tokens_per_second(16e9, bandwidth_bytes_per_s=3.35e12)
    209.375
    """
    if not weight_bytes > 0.0:
        raise InputError("weight_bytes", weight_bytes, "must be > 0")
    if not bandwidth_bytes_per_s > 0.0:
        raise InputError("bandwidth_bytes_per_s", bandwidth_bytes_per_s, "must be > 0")
    return bandwidth_bytes_per_s / weight_bytes
