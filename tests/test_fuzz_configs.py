"""Mutated configs of real models: each outcome is a valid architecture or one InputError.

``SPECMODEL_FUZZ`` sets how many mutations are tried (500 by default; ``make fuzz`` asks for 20,000).
"""

from __future__ import annotations

import copy
import json
import math
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specmodel.errors import InputError
from specmodel.ledger import memory
from specmodel.model import Model
from specmodel.readers import catalogue, json_file, load

MUTATIONS = int(os.environ.get("SPECMODEL_FUZZ", "500"))
# What people and broken tools put where a number, a list, a name or an object belongs.
WRONG: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, 3, -1, 7, 64, 2**31, 2**63, 10**40, -(10**40), 1.5, 4096.0, 1e308, math.inf,
    math.nan, "", "4096", "full_attention", "re:(.*)*", "\u2603" * 50, [], [[]], [0], [1] * 64, ["x"] * 48,
    [None] * 61, {}, {"a": 1}, {"quant_method": "fp8"}, {"hidden_size": 8}, [{"b": []}], 2**20, 2**24, 61,
)  # fmt: skip
KEYS = (
    "layer_types",
    "sliding_window",
    "head_dim",
    "num_experts",
    "n_routed_experts",
    "kv_lora_rank",
    "model_type",
    "quantization_config",
    "text_config",
    "tie_word_embeddings",
    "num_key_value_heads",
    "attn_type_list",
    "hybrid_override_pattern",
    "full_attention_interval",
    "moe_layer_freq",
    "mlp_only_layers",
    "torch_dtype",
    "num_nextn_predict_layers",
    "index_head_dim",
    "use_sliding_window",
    "no_rope_layers",
    "hidden_act",
)


def places(config: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values inside a config."""
    entries: Any = ()
    if isinstance(config, dict):
        entries = config.items()
    elif isinstance(config, list):
        entries = enumerate(config)
    for key, value in entries:
        yield (*path, key)
        yield from places(value, (*path, key))


def mutated(config: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """A config with one to three values dropped, replaced, wrapped, scaled or added."""
    changed = copy.deepcopy(config)
    for _ in range(draw.randint(1, 3)):
        spots = list(places(changed))
        action = draw.choice(("drop", "replace", "replace", "wrap", "scale", "add", "nest"))
        if action == "add" or not spots:
            changed[draw.choice(KEYS)] = copy.deepcopy(draw.choice(WRONG))
            continue
        if action == "nest":
            changed = {"text_config": changed, "model_type": draw.choice(("", "wrapper", "gemma3", 3))}
            continue
        *way, last = draw.choice(spots)
        holder: Any = changed
        for step in way:
            holder = holder[step]
        value = holder[last]
        if action == "drop":
            del holder[last]
        elif action == "wrap":
            holder[last] = [value] if draw.random() < 0.5 else {"x": value}
        elif action == "scale" and isinstance(value, int):
            holder[last] = value * draw.choice((-1, 0, 3, 1000, 10**12)) + draw.choice((0, 1, -1))
        else:
            holder[last] = copy.deepcopy(draw.choice(WRONG))
    return changed


def written(config: dict[str, Any], draw: random.Random) -> str:
    """The config as text, now and then with a key twice or cut short."""
    text = json.dumps(config)
    luck = draw.random()
    if luck < 0.03:
        return text[: draw.randrange(len(text))]
    if luck < 0.06:
        return text[:-1] + ', "hidden_size": 8, "hidden_size": 8}'
    return text


def assert_valid(model: Model) -> None:
    """Counts positive and finite, active within all, bytes positive, a ledger that closes."""
    architecture = model.architecture
    assert 0 < architecture.active_parameters <= architecture.parameters
    for figure in (
        float(architecture.parameters),
        model.weight_bytes,
        architecture.flops_per_token,
        float(model.streamed_bytes(4)),
    ):
        assert 0.0 < figure < math.inf
    for figure in (
        float(model.kv_bytes(1000)),
        model.state_bytes(),
        float(architecture.attention_flops(1000, 2)),
    ):
        assert 0.0 <= figure < math.inf
    assert architecture.kv_elements_per_token >= 0
    assert sum(architecture.parts().values()) >= architecture.parameters
    assert memory(model, memory_bytes=80e9, context=1000, batch=2).short_bytes >= 0.0


def test_mutated_configs(tmp_path: Path) -> None:
    draw = random.Random(20260)
    entries = [entry for entry in catalogue.ids() if entry != "lecture-7b"]
    configs = [
        {key: value for key, value in catalogue.config(entry).items() if key != "_specmodel"}
        for entry in entries
    ]
    loaded, lines = 0, []
    for number in range(MUTATIONS):
        text = written(mutated(draw.choice(configs), draw), draw)
        try:
            held = json_file.parse_object(text, "config.json")
            model = load(held)
        except InputError as error:
            lines.append(str(error))
            continue
        except Exception as error:
            raise AssertionError(f"mutation {number} raised {error!r}: {text}") from error
        loaded += 1
        try:
            assert_valid(model)
        except Exception as error:
            raise AssertionError(f"mutation {number} is not valid: {text}") from error
    assert loaded > MUTATIONS // 20
    assert all("\n" not in line and len(line) < 1000 for line in lines)
