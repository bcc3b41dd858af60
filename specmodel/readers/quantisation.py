"""How a checkpoint stores its weights: dtype, ``quantization_config``, hf_quant_config.json -> Precision.

What a config ignores, excludes or does not convert stays in the checkpoint's dtype; so do router, norms and
embedding always, and the output head unless the config quantises it by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from specmodel.architecture import Layer
from specmodel.errors import InputError
from specmodel.formats import NumberFormat, custom_format, number_format
from specmodel.model import QUANTISABLE, SIXTEEN_BIT, Precision
from specmodel.readers import schemes
from specmodel.readers.module_patterns import share
from specmodel.readers.schemes import Scheme

_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "bf16",
    "float": "bf16",
    "auto": "bf16",
}


def base_format(
    config: Mapping[str, Any], outer: Mapping[str, Any], where: str
) -> tuple[NumberFormat, tuple[str, ...]]:
    """The format of what is not quantised: ``dtype`` or ``torch_dtype``, bf16 where neither stands.

    float32 checkpoints are read as bf16, as engines load them in 16 bit; a note says so.
    """
    for holder in (config, outer):
        for key in ("dtype", "torch_dtype"):
            value = holder.get(key)
            if value is None:
                continue
            name = value.removeprefix("torch.") if isinstance(value, str) else value
            if not isinstance(name, str) or name not in _DTYPES:
                raise InputError(key, value, f"one of {', '.join(_DTYPES)} ({where})")
            wide = name in ("float32", "float")
            notes = ("float32 checkpoint: taken as bf16, as engines load it",) if wide else ()
            return number_format(_DTYPES[name]), notes
    return number_format("bf16"), ()


def _mixed(part: str, shares: list[tuple[float, NumberFormat]]) -> NumberFormat:
    """The format of a part, an average where its modules differ."""
    used = [(weight, chosen) for weight, chosen in shares if weight > 0]
    if len(used) == 1:
        return used[0][1]
    total = sum(weight for weight, _ in used)
    bits = sum(weight * chosen.bits for weight, chosen in used) / total
    most = max(used, key=lambda pair: pair[0])[1]
    names = " + ".join(f"{weight / total:.0%} {chosen.name}" for weight, chosen in used)
    return custom_format(f"mixed-{part}", bits, most.rate, most.weight_only, names)


def _part_format(scheme: Scheme, part: str, layers: Sequence[Layer], base: NumberFormat) -> NumberFormat:
    kept = share(scheme.ignored, part, layers) if scheme.ignored else 0.0
    shares: list[tuple[float, NumberFormat]] = []
    left = 1.0
    for group in scheme.groups:
        named = 1.0 if group.targets is None else share(group.targets, part, layers)
        taken = min(left, named)
        shares.append((taken * (1.0 - kept), group.format))
        left -= taken
    shares.append((1.0 - sum(weight for weight, _ in shares), base))
    return _mixed(part, [(weight if weight > 1e-9 else 0.0, chosen) for weight, chosen in shares])


def _names_nothing(scheme: Scheme, layers: Sequence[Layer]) -> bool:
    """Whether there are groups, and not one of their targets is a module of this decoder."""
    return bool(scheme.groups) and all(
        group.targets is not None and not any(share(group.targets, part, layers) for part in scheme.parts)
        for group in scheme.groups
    )


def precision(
    config: Mapping[str, Any],
    outer: Mapping[str, Any],
    layers: Sequence[Layer],
    where: str,
    beside: Mapping[str, Any] | None = None,
) -> tuple[Precision, tuple[str, ...]]:
    """Formats that a checkpoint declares, and what had to be assumed.

    Parameters
    ----------
    config, outer : mapping
        The decoder's keys, and the wrapper's; the decoder's count first.
    layers : sequence of Layer
        Decoder layers in order, for module lists that name single ones.
    where : str
        The file, for errors.
    beside : mapping, optional
        What hf_quant_config.json holds; read where config.json declares nothing.

    Raises
    ------
    InputError
        If the method is unknown or its object is malformed.
    """
    base, widened = base_format(config, outer, where)
    declared = config.get("quantization_config")
    declared = outer.get("quantization_config") if declared is None else declared
    declared = beside if declared is None else declared
    if declared is None or declared == {}:
        return Precision(base, MappingProxyType({}), base), widened
    if not isinstance(declared, dict):
        raise InputError("quantization_config", declared, f"a JSON object ({where})")
    scheme = schemes.read(declared, where)
    formats = dict.fromkeys((*QUANTISABLE, *SIXTEEN_BIT), base)
    for part in scheme.parts:
        formats[part] = _part_format(scheme, part, layers, base)
    if any(group.quantises_head for group in scheme.groups):
        heads = Scheme([group for group in scheme.groups if group.quantises_head], scheme.ignored)
        formats["head"] = _part_format(heads, "head", layers, base)
    formats["indexer"] = formats["attention"]
    if scheme.mtp and not scheme.ignored.names("mtp.layers.0"):
        formats["mtp"] = formats["experts"]
    notes = [*widened, *scheme.notes]
    if _names_nothing(scheme, layers):
        widest = max((group.format for group in scheme.groups), key=lambda chosen: chosen.bits)
        formats.update(dict.fromkeys(scheme.parts, widest))
        notes.append(f"the quantisation names no module of this decoder: all of them taken as {widest.name}")
    main = formats["experts"] if "experts" in scheme.parts else formats["dense"]
    differing = {part: chosen for part, chosen in formats.items() if chosen is not main}
    kept = base if scheme.kv is None else scheme.kv
    return Precision(main, MappingProxyType(differing), kept), tuple(notes)
