"""What a path holds -> Model: a config, a checkpoint folder, an index, a safetensors or a GGUF file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from specmodel.errors import InputError
from specmodel.formats import NumberFormat, custom_format
from specmodel.model import Model
from specmodel.readers import from_config, gguf, gguf_model, json_file, safetensors
from specmodel.readers.gguf_model import differs
from specmodel.readers.safetensors import Index, Stored
from specmodel.readers.tensor_names import part_of

INDEX = "model.safetensors.index.json"
_MOST_FILES = 4096


def read(path: Path, name: str | None = None) -> Model:
    """The model at a path; files are told apart by content, folders by what they hold.

    Raises
    ------
    InputError
        If there is no config, or a file is broken or too large for what it is.
    """
    if path.is_dir():
        return _folder(path, name)
    if path.is_file() and gguf.is_gguf(path):  # a pipe is read once, and holds a config
        return gguf_model.read(path, name)
    if path.suffix == ".gguf":
        raise InputError("model", str(path), "no readable GGUF file: it does not start with GGUF")
    if path.suffix == ".safetensors":
        return _with_tensors(_beside(path, name), safetensors.header(path))
    is_index = path.name.endswith(".index.json")
    limit = json_file.INDEX_LIMIT_BYTES if is_index else json_file.CONFIG_LIMIT_BYTES
    held = json_file.read_object(path, limit)
    if "weight_map" in held:
        return _with_index(_beside(path, name), safetensors.index(held, str(path)), path.parent)
    return from_config(held, name or _name(path), str(path))


def _name(path: Path) -> str:
    """config.json is called after its folder, other files after themselves."""
    return path.parent.name if path.name == "config.json" and path.parent.name else path.stem


def _beside(path: Path, name: str | None) -> Model:
    """The model of the config.json next to a weight file."""
    config = path.parent / "config.json"
    if not config.is_file():
        raise InputError("model", str(path), "a config.json beside it is needed: sizes alone have no shape")
    return _from_folder(path.parent, name)


def _from_folder(folder: Path, name: str | None) -> Model:
    """The model of a folder's config.json, with the quantisation file that may lie beside it."""
    held = json_file.read_object(folder / "config.json")
    quantised = folder / "hf_quant_config.json"
    beside = json_file.read_object(quantised) if quantised.is_file() else None
    return from_config(held, name or folder.name or "config", str(folder / "config.json"), beside=beside)


def _folder(folder: Path, name: str | None) -> Model:
    if not (folder / "config.json").is_file():
        found = sorted(folder.glob("*.gguf"))
        if not found:
            raise InputError("model", str(folder), "this folder holds no config.json and no .gguf file")
        if len(found) > 1 and not found[0].stem.endswith(f"-00001-of-{len(found):05d}"):
            names = ", ".join(path.name for path in found[:4])
            raise InputError("model", str(folder), f"holds several .gguf files, name one: {names}")
        return gguf_model.read(found[0], name)
    model = _from_folder(folder, name)
    index_path = folder / INDEX
    if index_path.is_file():
        held = json_file.read_object(index_path, json_file.INDEX_LIMIT_BYTES)
        return _with_index(model, safetensors.index(held, str(index_path)), folder)
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        return model
    if len(shards) > _MOST_FILES:
        raise InputError(
            "model", str(folder), f"holds {len(shards)} safetensors files; at most {_MOST_FILES}"
        )
    return _with_tensors(model, safetensors.shards(shards))


def _with_index(model: Model, index: Index, folder: Path) -> Model:
    """Bytes from the files that an index lists where they are all there, else from its total."""
    paths = [folder / file for file in index.files]
    if len(paths) <= _MOST_FILES and paths and all(path.is_file() for path in paths):
        return _with_tensors(model, safetensors.shards(paths))
    if index.total_bytes is None:
        return replace(model, notes=(*model.notes, "the index states no total_size: bytes are counted"))
    architecture = model.architecture
    parts = {name: part_of(name, architecture.layer_count) for name in index.tensors}
    if "other" in parts.values():
        note = "the index also lists a vision tower of unknown size: bytes are counted"
        return replace(model, notes=(*model.notes, note))
    beyond = 0.0
    drafts = [name for name, part in parts.items() if part == "mtp"]
    if drafts and architecture.mtp is not None:
        mtp = architecture.mtp
        beyond = mtp.modules * mtp.parameters * model.precision.of("mtp").bytes
        copies = sum(name.endswith(("embed_tokens.weight", "shared_head.head.weight")) for name in drafts)
        beyond += copies * architecture.embedding_parameters * model.precision.of("embedding").bytes
    stored = index.total_bytes - beyond
    if stored <= 0.0:
        raise InputError("total_size", index.total_bytes, "more bytes than its MTP modules alone take")
    notes = model.notes + differs(stored, model.weight_bytes)
    if beyond:
        notes += (f"the index's total less {beyond / 1e9:.4g} GB of MTP modules",)
    return replace(model, weight_bytes=stored, measured_bytes=True, notes=notes)


def _with_tensors(model: Model, tensors: Iterable[Stored]) -> Model:
    """Bytes of the decoder from its tensors; a part stored in other bits than declared takes those."""
    architecture = model.architecture
    stored: dict[str, int] = {}
    for tensor in tensors:
        part = part_of(tensor.name, architecture.layer_count)
        stored[part] = stored.get(part, 0) + tensor.bytes
    if architecture.tied:
        stored.pop("head", None)
    beyond = {part: stored.pop(part) for part in ("mtp", "other") if part in stored}
    total = float(sum(stored.values()))
    if not total:
        raise InputError("model", model.source, "the files beside it hold no tensors of a decoder")
    notes = model.notes + differs(total, model.weight_bytes)
    if beyond:
        held = " and ".join(
            f"{size / 1e9:.4g} GB of {'MTP modules' if part == 'mtp' else 'other towers'}"
            for part, size in beyond.items()
        )
        notes += (f"the files also hold {held}, not counted",)
    formats = dict(model.precision.parts)
    counted = architecture.parts()
    for part, size in stored.items():
        declared = model.precision.of(part)
        if part == "norms" or not counted.get(part):
            continue
        bits = 8.0 * size / counted[part]
        if abs(bits - declared.bits) > 0.01 * bits and bits <= 64.0:
            formats[part] = _as_stored(part, bits, declared)
    precision = replace(model.precision, parts=MappingProxyType(formats))
    return replace(model, precision=precision, weight_bytes=total, measured_bytes=True, notes=notes)


def _as_stored(part: str, bits: float, declared: NumberFormat) -> NumberFormat:
    """A format of those bits; narrow weights of an undeclared kind are taken as weight-only."""
    source = f"as stored in the files; {declared.name} declared"
    if bits >= 15.0:
        return custom_format(f"stored-{part}", bits, "bf16", False, source)
    if declared.bits < 15.0:
        return custom_format(f"stored-{part}", bits, declared.rate, declared.weight_only, source)
    return custom_format(f"stored-{part}", bits, "bf16", True, source)
