"""Draft-head configs -> DraftHead: recognised by their keys; known heads, and a rule for the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from specmodel.architecture import Architecture, Layer
from specmodel.drafters import heads as draft_heads
from specmodel.drafters.heads import DraftHead
from specmodel.errors import InputError, unknown_name
from specmodel.layers.feed_forward import Dense
from specmodel.layers.mixers import Attention
from specmodel.readers import catalogue, json_file
from specmodel.readers.blocks import head_counts, head_size
from specmodel.readers.fields import Fields

KINDS = ("eagle", "eagle3", "medusa", "mlp_speculator", "dflash")


def kind_of(config: Mapping[str, Any]) -> str | None:
    """What a config is a draft head of, None where it is a whole model."""
    told = config.get("speculators_model_type")
    if isinstance(told, str):
        return {"peagle": "eagle3", "dspark": "dflash"}.get(told, told)
    if "medusa_num_heads" in config:
        return "medusa"
    if config.get("model_type") == "mlp_speculator":
        return "mlp_speculator"
    architectures = config.get("architectures")
    names = " ".join(map(str, architectures)) if isinstance(architectures, list) else ""
    if "eagle3" in names.casefold() or "draft_vocab_size" in config:
        return "eagle3"
    if "dflash" in names.casefold():
        return "dflash"
    return "eagle" if "eagle" in names.casefold() else None


def _layer(fields: Fields, hidden: int) -> Layer:
    heads, kv_heads = head_counts(fields)
    head_dim = head_size(fields, hidden, heads)
    return Layer(
        Attention(heads, kv_heads, head_dim, head_dim), Dense(fields.integer("intermediate_size")), 0
    )


def _captured(fields: Fields, default: int) -> int:
    """How many hidden states of the target the head fuses."""
    eagle_config = fields.get("eagle_config")[1]
    holder = eagle_config if isinstance(eagle_config, dict) else fields.values
    listed = holder.get("eagle_aux_hidden_state_layer_ids", holder.get("aux_hidden_state_layer_ids"))
    return len(listed) if isinstance(listed, list) and listed else default


def read(
    config: Mapping[str, Any],
    name: str,
    where: str,
    kind: str | None = None,
    target: Architecture | None = None,
) -> DraftHead:
    """The draft head that a config describes.

    Parameters
    ----------
    config : mapping
        What its config.json holds, plain or in the speculators format.
    name, where : str
        What to call it; the file, for errors.
    kind : str, optional
        Where the config does not say: an EAGLE-1 config is a plain one-layer model.
    target : Architecture, optional
        Fills in what Medusa configs leave out, its width and vocabulary.

    Raises
    ------
    InputError
        If it is no draft head, or a key is missing or out of range.
    """
    found = kind or kind_of(config)
    if found not in KINDS:
        raise InputError("draft", found, f"one of {', '.join(KINDS)} ({where})")
    inner = config.get("transformer_layer_config")
    if inner is not None and not isinstance(inner, dict):
        raise InputError("transformer_layer_config", inner, f"a JSON object ({where})")
    fields = Fields({**(inner or {}), **{k: v for k, v in config.items() if k not in (inner or {})}}, where)
    if found == "medusa":
        if target is None:
            raise InputError("draft", name, f"a Medusa config needs its target: give the model too ({where})")
        heads = fields.integer("medusa_num_heads", high=64)
        blocks = fields.integer("medusa_num_layers", high=64)
        return draft_heads.medusa(name, target.hidden, target.vocabulary, heads=heads, blocks=blocks)
    if found == "mlp_speculator":
        return draft_heads.mlp_speculator(
            name,
            fields.integer("emb_dim"),
            fields.integer("inner_dim"),
            fields.integer("vocab_size"),
            steps=fields.integer("n_predict", high=64),
            tied=fields.flag("tie_weights", False),
        )
    hidden = fields.integer("hidden_size")
    layers = fields.optional("num_hidden_layers", high=64) or 1
    context = fields.optional("max_position_embeddings")
    layer = _layer(fields, hidden)
    if found == "eagle":
        vocabulary = fields.integer("vocab_size")
        return draft_heads.eagle(name, layer, hidden, vocabulary, layers=layers, max_context=context)
    if found == "dflash":
        return draft_heads.dflash(
            name,
            replace(layer, norm_elements=2 * hidden),
            hidden,
            fields.integer("vocab_size"),
            layers=layers,
            captured_layers=_captured(fields, layers),
            max_context=context,
        )
    return draft_heads.eagle3(
        name,
        layer,
        hidden,
        fields.integer("draft_vocab_size", "vocab_size"),
        target_hidden=fields.optional("target_hidden_size"),
        captured_layers=_captured(fields, 3),
        layers=layers,
        max_context=context,
    )


def known() -> list[str]:
    """Ids of the draft heads in the catalogue."""
    return list(catalogue.index()["drafts"])


def load_known(head_id: str, target: Architecture | None = None) -> DraftHead:
    """A draft head of the catalogue.

    Raises
    ------
    InputError
        If there is none of that id.
    """
    listed = {catalogue.folded(entry): entry for entry in known()}
    found = listed.get(catalogue.folded(head_id))
    if found is None:
        raise unknown_name("draft", head_id, known())
    held = catalogue.config(found)
    about = held["_specmodel"]
    if about["kind"] == "medusa" and target is None:
        target = _target_shape(about["target"])
    head = read(held, found, f"catalogue: {found}", kind=about["kind"], target=target)
    notes = (about["note"],) if about.get("note") else ()
    return replace(head, notes=head.notes + notes, source=about["source"])


def _target_shape(entry_id: str) -> Architecture:
    from specmodel.readers import hf

    return hf.decoder(catalogue.config(entry_id), entry_id, entry_id).architecture


def for_target(kind: str, target: Architecture) -> DraftHead:
    """The head of that kind for a target: a known one, else by rule (EAGLE and EAGLE-3 only).

    A known head fits by the target's catalogue id, or by its width, vocabulary and layer count.

    Raises
    ------
    InputError
        If the kind is unknown, or no head of it is known for this target and no rule gives one.
    """
    if kind not in KINDS:
        raise unknown_name("draft", kind, KINDS)
    shape = [target.hidden, target.vocabulary, target.layer_count]
    for head_id, listed in catalogue.index()["drafts"].items():
        if listed["kind"] == kind and (listed["target"] == target.name or listed["shape"] == shape):
            return load_known(head_id, target)
    if kind == "eagle3":
        return draft_heads.eagle3_for(target)
    if kind == "eagle":
        return draft_heads.eagle_for(target)
    raise InputError("draft", kind, f"no {kind} head of {target.name} is known; give its config.json")


def load(source: str | Path, target: Architecture | None = None) -> DraftHead:
    """A draft head from its config.json, the folder that holds it, or its catalogue id."""
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        config = json_file.read_object(path, field="draft")
        return read(config, path.parent.name or path.stem, str(path), target=target)
    return load_known(str(source), target)
