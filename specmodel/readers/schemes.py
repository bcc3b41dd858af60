"""The quantisation methods that checkpoints declare, each read into groups of modules and their formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from specmodel.errors import InputError
from specmodel.formats import NumberFormat, custom_format, number_format
from specmodel.model import QUANTISABLE
from specmodel.readers.json_file import shown
from specmodel.readers.module_patterns import Patterns

_IGNORE_KEYS = (
    "ignore",
    "exclude_modules",
    "modules_to_not_convert",
    "ignored_layers",
    "llm_int8_skip_modules",
)


@dataclass
class Group:
    """Modules that share a format: named by ``targets``, all linear ones where it is None."""

    format: NumberFormat
    targets: Patterns | None = None
    quantises_head: bool = False


@dataclass
class Scheme:
    """What one quantisation config says."""

    groups: list[Group]
    ignored: Patterns
    kv: NumberFormat | None = None
    parts: tuple[str, ...] = QUANTISABLE
    mtp: bool = False
    notes: list[str] = field(default_factory=list)


class Keys:
    """Typed access to a quantisation object."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def error(self, key: str, value: object, allowed: str) -> InputError:
        return InputError(f"quantization_config.{key}", value, f"{allowed} ({self.where})")

    def integer(self, key: str, default: int, choices: tuple[int, ...] = ()) -> int:
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or (choices and value not in choices):
            raise self.error(key, value, f"one of {choices}" if choices else "an integer")
        return value

    def group(self, default: int) -> int:
        """``group_size``: -1 is one scale per channel, which weighs nothing."""
        size = self.integer("group_size", default)
        if size != -1 and not 0 < size <= 2**20:
            raise self.error("group_size", size, "-1 or a positive integer")
        return size

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false")
        return value

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.error(key, value, "a string")
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.values.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(key, value, "a JSON object")
        return value

    def ignored(self) -> Patterns:
        listed: list[object] = []
        for key in _IGNORE_KEYS:
            value = self.values.get(key)
            if value is not None and not isinstance(value, list):
                raise self.error(key, value, "a list of module names")
            listed += value or []
        return Patterns(listed, "quantization_config.ignore", self.where)


def _integer_format(bits: int, group: int, extra_bits: float, eight_bit_inputs: bool = False) -> NumberFormat:
    """``bits`` per weight and, per group, a 16-bit scale with ``extra_bits`` for a zero point."""
    overhead = (16 + extra_bits) / group if group > 0 else 0.0
    if bits == 8 and eight_bit_inputs:
        return (
            number_format("int8")
            if not overhead
            else custom_format(f"int8-g{group}", 8 + overhead, "int8", False, f"8 bits, scales per {group}")
        )
    spread = f"-g{group}" if group > 0 else ""
    zero = "-zp" if extra_bits else ""
    layout = f"{bits} bits, 16-bit scale{' and zero point' if extra_bits else ''} per {group}"
    return custom_format(f"int{bits}{spread}{zero}", bits + overhead, "bf16", True, layout)


def _fp8(keys: Keys) -> Scheme:
    block = keys.values.get("weight_block_size")
    chosen = number_format("fp8")
    if block is not None:
        sizes = block if isinstance(block, list) else []
        whole = [size for size in sizes if isinstance(size, int) and not isinstance(size, bool)]
        if len(whole) != 2 or len(sizes) != 2 or not all(0 < size <= 2**16 for size in whole):
            raise keys.error("weight_block_size", block, "two positive integers")
        bits = 8 + 32 / (whole[0] * whole[1])
        standard = number_format("fp8-block")
        chosen = (
            standard
            if bits == standard.bits
            else custom_format(
                f"fp8-block-{whole[0]}x{whole[1]}", bits, "fp8", False, "fp8 with float32 block scales"
            )
        )
    return Scheme([Group(chosen)], keys.ignored(), mtp=True)


def _awq(keys: Keys) -> Scheme:
    bits = keys.integer("bits", 4, (2, 3, 4, 8))
    group = keys.group(128)
    chosen = _integer_format(bits, group, bits if keys.flag("zero_point", True) else 0)
    standard = number_format("awq")
    return Scheme([Group(standard if chosen.bits == standard.bits else chosen)], keys.ignored())


def _gptq(keys: Keys) -> Scheme:
    bits = keys.integer("bits", 4, (2, 3, 4, 8))
    chosen = _integer_format(bits, keys.group(128), bits)
    standard = number_format("gptq")
    chosen = standard if chosen.bits == standard.bits else chosen
    scheme = Scheme([Group(chosen, quantises_head=keys.flag("lm_head"))], keys.ignored())
    if keys.mapping("dynamic"):
        scheme.notes.append("gptq 'dynamic' overrides per module are not read: bits of the main setting")
    return scheme


def _bitsandbytes(keys: Keys) -> Scheme:
    if keys.flag("load_in_8bit"):
        return Scheme([Group(number_format("int8-wo"))], keys.ignored())
    if not keys.flag("load_in_4bit"):
        raise keys.error("load_in_4bit", False, "load_in_4bit or load_in_8bit must be true")
    kind = keys.text("bnb_4bit_quant_type") or "fp4"
    if kind not in ("nf4", "fp4"):
        raise keys.error("bnb_4bit_quant_type", kind, "nf4 or fp4")
    name = "nf4-double" if keys.flag("bnb_4bit_use_double_quant") else "nf4"
    return Scheme([Group(number_format(name))], keys.ignored())


def _mxfp4(keys: Keys) -> Scheme:
    return Scheme([Group(number_format("mxfp4"))], keys.ignored(), parts=("experts",))


def _fbgemm(keys: Keys) -> Scheme:
    return Scheme([Group(number_format("fp8"))], keys.ignored())


def _kv_scheme(keys: Keys) -> NumberFormat | None:
    """``kv_cache_scheme`` or ``kv_cache_quant_algo``, None where neither declares anything."""
    scheme = keys.mapping("kv_cache_scheme")
    algorithm = keys.text("kv_cache_quant_algo").casefold()
    if algorithm and algorithm != "none":
        if algorithm not in ("fp8", "int8", "nvfp4"):
            raise keys.error("kv_cache_quant_algo", algorithm, "FP8, INT8 or NVFP4")
        return number_format(algorithm)
    if not scheme:
        return None
    bits = Keys(scheme, keys.where).integer("num_bits", 8, (4, 8))
    if bits == 4:
        return number_format("nvfp4")
    return number_format("int8" if scheme.get("type") == "int" else "fp8")


def _compressed_format(keys: Keys, weights: Keys, layout: str, inputs: object) -> NumberFormat:
    """One ``weights`` object of compressed-tensors or modelopt."""
    bits = weights.integer("num_bits", 8, (2, 3, 4, 5, 6, 7, 8, 16))
    if bits == 16:
        return number_format("bf16")
    is_float = weights.text("type") == "float"
    strategy = weights.text("strategy")
    group = weights.group(-1) if strategy in ("group", "tensor_group", "") else -1
    if is_float and bits == 8:
        if layout == "mxfp8-quantized" or (group == 32 and inputs is not None):
            return number_format("mxfp8")
        block = weights.values.get("block_structure")
        if strategy == "block" and block is not None:
            return _fp8(Keys({"weight_block_size": block}, keys.where)).groups[0].format
        return number_format("fp8" if inputs is not None else "fp8-wo")
    if is_float and bits == 4:
        if layout.startswith("mxfp4") or group == 32:
            return number_format("mxfp4")
        return number_format("nvfp4" if inputs is not None else "nvfp4-wo")
    if is_float:
        raise weights.error("num_bits", bits, "4 or 8 for floating-point weights")
    if bits == 8 and inputs is None and group == -1:
        return number_format("int8-wo")
    zero_point = 0 if weights.flag("symmetric", True) else bits
    return _integer_format(bits, group, zero_point, eight_bit_inputs=inputs is not None)


def _groups(keys: Keys) -> list[Group]:
    """``config_groups`` of compressed-tensors and modelopt."""
    found = []
    top_layout = keys.text("format")
    for name, group in keys.mapping("config_groups").items():
        if not isinstance(group, dict):
            raise keys.error(f"config_groups.{shown(name)}", group, "a JSON object")
        inner = Keys(group, keys.where)
        if group.get("weights") is None:
            continue
        weights = Keys(inner.mapping("weights"), keys.where)
        layout = inner.text("format") or top_layout
        chosen = _compressed_format(keys, weights, layout, group.get("input_activations"))
        targets = group.get("targets")
        if targets is None:
            targets = ["Linear"]
        if not isinstance(targets, list):
            raise keys.error(f"config_groups.{shown(name)}.targets", targets, "a list of names")
        if "Linear" in targets:
            found.append(Group(chosen, None, quantises_head=True))
        else:
            found.append(Group(chosen, Patterns(targets, "targets", keys.where), quantises_head=True))
    return found


def _compressed_tensors(keys: Keys) -> Scheme:
    if keys.text("format") == "dense":
        return Scheme([], keys.ignored(), kv=_kv_scheme(keys))
    groups = _groups(keys)
    if not groups:
        raise keys.error("config_groups", None, "at least one group with weights")
    scheme = Scheme(groups, keys.ignored(), kv=_kv_scheme(keys))
    if keys.mapping("sparsity_config").get("format") not in (None, "dense"):
        scheme.notes.append("sparsity_config is not counted: bytes are those of dense weights")
    return scheme


_MODELOPT = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8-block",
    "FP8_PB_REAL": "fp8-block",
    "MXFP8": "mxfp8",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_NVFP4": "nvfp4-wo",
    "MXFP4": "mxfp4",
    "W4A8_MXFP4_FP8": "mxfp4",
    "W4A16_AWQ": "int4-g128",
    "W4A8_AWQ": "int4-g128",
    "W8A16": "int8-wo",
    "W8A8_SQ_PER_CHANNEL": "int8",
    "INT8_SQ": "int8",
}


def _modelopt_format(keys: Keys, algorithm: object) -> NumberFormat:
    if not isinstance(algorithm, str) or algorithm.upper() not in _MODELOPT:
        raise keys.error("quant_algo", algorithm, f"one of {', '.join(_MODELOPT)}, MIXED_PRECISION")
    return number_format(_MODELOPT[algorithm.upper()])


def _modelopt(keys: Keys) -> Scheme:
    nested = keys.mapping("quantization")
    if nested:
        keys = Keys(nested, keys.where)
    scheme = Scheme([], keys.ignored(), kv=_kv_scheme(keys))
    algorithm = keys.values.get("quant_algo")
    by_format: dict[NumberFormat, list[object]] = {}
    if algorithm == "MIXED_PRECISION":
        for module, setting in keys.mapping("quantized_layers").items():
            if not isinstance(setting, dict):
                raise keys.error(f"quantized_layers.{shown(module)}", setting, "a JSON object")
            by_format.setdefault(_modelopt_format(keys, setting.get("quant_algo")), []).append(module)
        for chosen, named in by_format.items():
            targets = Patterns(named, "quantized_layers", keys.where)
            scheme.groups.append(Group(chosen, targets, quantises_head=True))
    elif algorithm is not None:
        scheme.groups = [Group(_modelopt_format(keys, algorithm), None, quantises_head=True)]
    scheme.groups = scheme.groups or _groups(keys)
    if not scheme.groups and scheme.kv is None:
        raise keys.error("quant_algo", algorithm, f"one of {', '.join(_MODELOPT)}, MIXED_PRECISION")
    return scheme


# Substrings of torchao's configuration names, the more specific ones first.
_TORCHAO = (
    ("float8dynamicactivationint4", "int4-g128"),
    ("int8dynamicactivationint4", "int4-g32"),
    ("int8dynamicactivationint8", "int8"),
    ("float8dynamic", "fp8"),
    ("float8static", "fp8"),
    ("float8weightonly", "fp8-wo"),
    ("int8weightonly", "int8-wo"),
    ("nvfp4", "nvfp4"),
    ("mxfp8", "mxfp8"),
    ("mxfp4", "mxfp4"),
)


def _torchao(keys: Keys) -> Scheme:
    kind = keys.values.get("quant_type")
    group = 128
    if isinstance(kind, dict):
        kind = kind.get("default", kind)
        data = kind.get("_data") if isinstance(kind, dict) else None
        if isinstance(data, dict):
            group = Keys(data, keys.where).group(128)
        kind = kind.get("_type") if isinstance(kind, dict) else kind
    if not isinstance(kind, str):
        raise keys.error("quant_type", kind, "the name of a torchao configuration")
    folded = kind.casefold().replace("_", "")
    if "int4weightonly" in folded or folded.startswith("int4wo"):
        # its tiles keep a 16-bit scale and a 16-bit zero point
        return Scheme([Group(_integer_format(4, group, 16))], keys.ignored())
    for mark, name in _TORCHAO:
        if mark in folded:
            return Scheme([Group(number_format(name))], keys.ignored())
    known = "int4_weight_only, " + ", ".join(mark for mark, _ in _TORCHAO)
    raise keys.error("quant_type", kind, f"a torchao configuration known here: {known}")


_METHODS: Mapping[str, Callable[[Keys], Scheme]] = MappingProxyType(
    {
        "awq": _awq,
        "gptq": _gptq,
        "fp8": _fp8,
        "fbgemm_fp8": _fbgemm,
        "bitsandbytes": _bitsandbytes,
        "mxfp4": _mxfp4,
        "compressed-tensors": _compressed_tensors,
        "modelopt": _modelopt,
        "modelopt_fp4": _modelopt,
        "torchao": _torchao,
    }
)


def read(declared: Mapping[str, Any], where: str) -> Scheme:
    keys = Keys(declared, where)
    method = declared.get("quant_method")
    if method is None and ("quant_algo" in declared or "quantization" in declared):
        method = "modelopt"
    if method is None and "config_groups" in declared:
        method = "compressed-tensors"
    if not isinstance(method, str) or method not in _METHODS:
        raise keys.error("quant_method", method, f"one of {', '.join(_METHODS)}")
    return _METHODS[method](keys)
