"""safetensors and GGUF headers, indexes and the hub: exact bytes win, hostile headers are refused unread."""

from __future__ import annotations

import contextlib
import json
import os
import random
import struct
import subprocess
import sys
import threading
import tracemalloc
import types
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from specmodel.errors import InputError
from specmodel.readers import catalogue, gguf, hub, load, safetensors

ROOT = Path(__file__).parent.parent
TINY = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
LAYER_SHAPES = {
    "self_attn.q_proj.weight": (256, 256),
    "self_attn.k_proj.weight": (128, 256),
    "self_attn.v_proj.weight": (128, 256),
    "self_attn.o_proj.weight": (256, 256),
    "mlp.gate_proj.weight": (512, 256),
    "mlp.up_proj.weight": (512, 256),
    "mlp.down_proj.weight": (256, 512),
    "input_layernorm.weight": (256,),
    "post_attention_layernorm.weight": (256,),
}


def tiny_tensors() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tiny model, as its checkpoint would list them."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (1024, 256),
        "lm_head.weight": (1024, 256),
    }
    for layer in range(2):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in LAYER_SHAPES.items()}
    return shapes | {"model.norm.weight": (256,)}


def write_safetensors(path: Path, tensors: dict[str, tuple[int, ...]], dtype: str = "BF16") -> int:
    """A safetensors file with a true header and no data; the bytes its tensors span."""
    width, at, entries = {"BF16": 2, "F32": 4, "U8": 1}[dtype], 0, {}
    for name, shape in tensors.items():
        size = width
        for length in shape:
            size *= length
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps({"__metadata__": {"format": "pt"}} | entries).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    return at


def folder(path: Path, **changes: Any) -> Path:
    """A checkpoint folder of the tiny model, its config only."""
    (path / "config.json").write_text(json.dumps(TINY | changes))
    return path


def test_headers_give_the_bytes_that_counting_gives(tmp_path: Path) -> None:
    size = write_safetensors(folder(tmp_path) / "model.safetensors", tiny_tensors())
    for path in (tmp_path, tmp_path / "model.safetensors"):
        model = load(path)
        assert model.measured_bytes
        assert model.weight_bytes == size == 2 * model.architecture.parameters
        assert model.notes == ()


def test_files_that_differ_win_and_are_reported(tmp_path: Path) -> None:
    size = write_safetensors(folder(tmp_path) / "model.safetensors", tiny_tensors(), "F32")
    model = load(tmp_path)
    assert model.weight_bytes == size
    assert any("-50.0 %" in note for note in model.notes)
    assert model.precision.of("dense").bits == 32


def test_towers_and_mtp_modules_are_told_and_not_counted(tmp_path: Path) -> None:
    extra = {"vision_tower.layers.0.w": (512, 512), "model.layers.2.mlp.gate_proj.weight": (512, 256)}
    size = write_safetensors(folder(tmp_path) / "model.safetensors", tiny_tensors() | extra)
    model = load(tmp_path)
    assert model.weight_bytes == size - 2 * (512 * 512 + 512 * 256)
    assert any("MTP modules" in note and "other towers" in note for note in model.notes)


def test_an_index_alone_gives_its_total(tmp_path: Path) -> None:
    exact = 2 * load(TINY).architecture.parameters
    index = {"metadata": {"total_size": exact}, "weight_map": dict.fromkeys(tiny_tensors(), "a.safetensors")}
    path = folder(tmp_path) / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    for source in (path, tmp_path):
        assert load(source).weight_bytes == exact
        assert load(source).notes == ()
    path.write_text(json.dumps(index | {"metadata": {"total_size": exact // 2}}))
    assert load(path).weight_bytes == exact // 2
    assert any("+100.0 %" in note for note in load(path).notes)
    path.write_text(json.dumps(index | {"metadata": {"total_size": 0}}))
    assert load(path).weight_bytes == exact


def test_an_index_total_less_its_mtp_module(tmp_path: Path, shared: Path) -> None:
    """DeepSeek-V3: 688.57 GB of tensors by dtype, with an MTP layer and copies of embedding and head."""
    facts = json.loads((shared / "facts" / "models.json").read_text())["models"]
    fact = next(entry for entry in facts if entry["id"] == "deepseek-ai/DeepSeek-V3")
    (tmp_path / "config.json").write_text(json.dumps(fact["config"]))
    names = ["model.layers.0.mlp.up_proj.weight", "model.layers.61.embed_tokens.weight"]
    names += ["model.layers.61.shared_head.head.weight"]
    total = fact["derived"]["checkpoint_bytes"]["tensor_bytes_from_dtype_split"]
    index = {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(names, "x.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    model = load(tmp_path)
    counted = sum(model.counted_bytes().values())
    assert model.weight_bytes == pytest.approx(counted, rel=1e-3)
    assert not any("are counted" in note for note in model.notes)


def test_quantisation_beside_the_config_is_read(tmp_path: Path) -> None:
    scheme = {
        "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    }
    (folder(tmp_path) / "hf_quant_config.json").write_text(json.dumps(scheme))
    precision = load(tmp_path).precision
    assert (precision.of("dense").bits, precision.of("head").bits, precision.kv.name) == (4.5, 16, "fp8")


def entry(**changes: Any) -> bytes:
    """A safetensors file with one tensor, some of whose keys are changed."""
    told = {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]} | changes
    text = json.dumps({"model.norm.weight": told}).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 7,
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 100 * 2**20) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 2) + b"\xff\xff",
        struct.pack("<Q", 4) + b'{"a"',
        entry(data_offsets=[-8, 0]),
        entry(data_offsets=[8, 0]),
        entry(data_offsets=[0, 2**70]),
        entry(data_offsets="x"),
        entry(shape=[-1, -4]),
        entry(shape=[2**62, 2**62]),
        entry(shape=[True, 4]),
        entry(dtype="BF17"),
        entry(dtype=None),
    ],
)
def test_hostile_safetensors_headers(tmp_path: Path, data: bytes) -> None:
    path = folder(tmp_path) / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "held",
    [
        {"weight_map": []},
        {"weight_map": {"a": 3}},
        {"weight_map": {"a": "../../etc/passwd"}},
        {"weight_map": {"a": "/etc/passwd"}},
        {"weight_map": {}, "metadata": {"total_size": -5}},
        {"weight_map": {}, "metadata": {"total_size": "big"}},
    ],
)
def test_hostile_indexes(held: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        safetensors.index(held, "index")


# GGUF writing, by the format's description: little endian, strings with a 64-bit length.
def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def key(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        return text(name) + struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        return text(name) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    return text(name) + struct.pack("<II", 4, value)


def write_gguf(path: Path, keys: dict[str, Any], tensors: list[tuple[str, tuple[int, ...], int]]) -> Path:
    body = b"".join(key(name, value) for name, value in keys.items())
    for name, shape, kind in tensors:
        body += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        body += struct.pack("<IQ", kind, 0)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + body)
    return path


GGUF_KEYS: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 256,
    "llama.feed_forward_length": 512,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 2048,
    "tokenizer.ggml.tokens": [f"t{number}" for number in range(1024)],
}
GGUF_LAYER = {
    "attn_q": (256, 256),
    "attn_k": (256, 128),
    "attn_v": (256, 128),
    "attn_output": (256, 256),
    "ffn_gate": (256, 512),
    "ffn_up": (256, 512),
    "ffn_down": (512, 256),
}


def gguf_tensors(kind: int = 12, head: int = 14) -> list[tuple[str, tuple[int, ...], int]]:
    """Tensors of the tiny model: Q4_K inside, Q6_K embedding and head, F32 norms."""
    found: list[tuple[str, tuple[int, ...], int]] = [("token_embd.weight", (256, 1024), head)]
    found += [("output.weight", (256, 1024), head), ("output_norm.weight", (256,), 0)]
    for layer in range(2):
        found += [(f"blk.{layer}.{name}.weight", shape, kind) for name, shape in GGUF_LAYER.items()]
        found += [(f"blk.{layer}.{name}_norm.weight", (256,), 0) for name in ("attn", "ffn")]
    return found


def test_gguf_bytes_are_those_of_its_blocks(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", GGUF_KEYS, gguf_tensors())
    model = load(path)
    inside = 2 * (256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 512)
    assert model.architecture.parameters == load(TINY).architecture.parameters
    assert model.weight_bytes == inside // 256 * 144 + 2 * 256 * 1024 // 256 * 210 + 5 * 256 * 4
    assert model.precision.of("dense").bits == 4.5
    assert model.precision.of("head").bits == 6.5625
    assert model.precision.of("dense").rate == "bf16"
    assert load(tmp_path).weight_bytes == model.weight_bytes
    assert model.notes == ()


def test_gguf_without_an_output_tensor_is_tied(tmp_path: Path) -> None:
    tensors = [row for row in gguf_tensors() if row[0] != "output.weight"]
    model = load(write_gguf(tmp_path / "tied.gguf", GGUF_KEYS, tensors))
    assert model.architecture.tied
    assert model.precision.of("head").bits == 6.5625


def test_gguf_tensors_that_differ_from_its_keys_are_reported(tmp_path: Path) -> None:
    model = load(write_gguf(tmp_path / "odd.gguf", GGUF_KEYS | {"llama.block_count": 3}, gguf_tensors()))
    assert any("the files' bytes are used" in note for note in model.notes)


def test_gguf_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    for more in ({"mamba.ssm.state_size": 16}, {"mamba.expert_count": 4, "mamba.expert_used_count": 2}):
        keys = {name.replace("llama.", "mamba."): value for name, value in GGUF_KEYS.items()}
        path = write_gguf(
            tmp_path / "x.gguf", keys | {"general.architecture": "mamba"} | more, gguf_tensors()
        )
        with pytest.raises(InputError, match="refused"):
            load(path)


def test_split_gguf_is_summed_and_a_missing_part_told(tmp_path: Path) -> None:
    rows = gguf_tensors()
    whole = load(write_gguf(tmp_path / "whole.gguf", GGUF_KEYS, rows)).weight_bytes
    split = GGUF_KEYS | {"split.count": 2}
    first = write_gguf(tmp_path / "m-00001-of-00002.gguf", split, rows[:3])
    second = write_gguf(tmp_path / "m-00002-of-00002.gguf", {"split.count": 2}, rows[3:])
    assert load(first).weight_bytes == whole
    second.unlink()
    assert any("1 of 2 files" in note for note in load(first).notes)


def hostile_gguf() -> dict[str, bytes]:
    """Broken headers by what is wrong with them."""
    start = b"GGUF" + struct.pack("<I", 3)
    one_key, one_tensor = start + struct.pack("<QQ", 0, 1), start + struct.pack("<QQ", 1, 0)
    name = text("a")
    return {
        "magic": b"GGUX" + b"\0" * 64,
        "empty": b"GGUF",
        "version": b"GGUF" + struct.pack("<IQQ", 9, 0, 0),
        "counts": start + struct.pack("<QQ", 2**60, 2**60),
        "key length": one_key + struct.pack("<Q", 2**62) + b"a",
        "value type": one_key + name + struct.pack("<I", 99),
        "array of 2^60": one_key + name + struct.pack("<IIQ", 9, 4, 2**60),
        "strings of 2^40": one_key + name + struct.pack("<IIQ", 9, 8, 2**40) + b"\0" * 64,
        "string past the end": one_key
        + name
        + struct.pack("<IIQ", 9, 8, 5000)
        + struct.pack("<Q", 2**61) * 9000,
        "nested arrays": one_key + name + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50,
        "dimensions": one_tensor + name + struct.pack("<I", 2**31),
        "shape": one_tensor + name + struct.pack("<IQQIQ", 2, 2**63, 2**63, 0, 0),
        "zero": one_tensor + name + struct.pack("<IQIQ", 1, 0, 0, 0),
        "block": one_tensor + name + struct.pack("<IQIQ", 1, 255, 12, 0),
        "tensor type": one_tensor + name + struct.pack("<IQIQ", 1, 256, 77, 0),
    }


@pytest.mark.parametrize("kind", hostile_gguf())
def test_hostile_gguf_headers(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(hostile_gguf()[kind])
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="no readable GGUF file") as caught:
            load(path)
        assert "\n" not in str(caught.value)
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()


def test_a_header_past_the_limit_is_refused_without_reading_on(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 0, 10**9)
    with path.open("wb") as file:
        file.write(start)
        file.truncate(2 * 10**9)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="past 16 MiB"):
            load(path)
        assert tracemalloc.get_traced_memory()[1] < 18 * 2**20
    finally:
        tracemalloc.stop()


def test_truncated_and_damaged_headers_never_crash(tmp_path: Path) -> None:
    """Every cut and 400 seeded byte flips of true headers: a model or one InputError."""
    whole = write_gguf(tmp_path / "a.gguf", GGUF_KEYS | {"tokenizer.ggml.tokens": ["x"]}, gguf_tensors())
    write_safetensors(folder(tmp_path) / "b.safetensors", tiny_tensors())
    draw = random.Random(7)
    for source in (whole, tmp_path / "b.safetensors"):
        data = source.read_bytes()
        damaged = [data[:cut] for cut in range(0, len(data), 37)]
        for _ in range(200):
            at = draw.randrange(len(data))
            damaged.append(data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :])
        for piece in damaged:
            path = source.with_stem("damaged")
            path.write_bytes(piece)
            with contextlib.suppress(InputError):
                assert 0 < load(path).weight_bytes < float("inf")


def test_a_long_vocabulary_is_counted_and_not_kept(tmp_path: Path) -> None:
    tokens = [f"token {number}" for number in range(20_000)]
    path = write_gguf(tmp_path / "v.gguf", GGUF_KEYS | {"tokenizer.ggml.tokens": tokens}, gguf_tensors())
    assert gguf.header(path).keys["tokenizer.ggml.tokens"] == gguf.ArrayLength(20_000)


class HubStub(BaseHTTPRequestHandler):
    """A hub that has one model, acme/demo-8b, and of it the config only."""

    config = json.dumps(catalogue.config("llama-3.1-8b")).encode()

    def do_HEAD(self) -> None:
        self.reply(with_body=False)

    def do_GET(self) -> None:
        self.reply(with_body=True)

    def reply(self, with_body: bool) -> None:
        known = self.path.startswith("/acme/demo-8b/resolve/")
        body = self.config if known and self.path.endswith("/config.json") else b""
        self.send_response(200 if body else 404)
        if body:
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("ETag", '"abc"')
        else:
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    """The stub's address on 127.0.0.1."""
    pytest.importorskip("huggingface_hub", reason="the hub extra is not installed")
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubStub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


FETCH = """
from specmodel.errors import InputError
from specmodel.readers import load
for name in ("acme/demo-8b", "acme/nothing"):
    try:
        model = load(name)
        print(model.name, model.architecture.parameters)
    except InputError as error:
        print(error)
"""


def fetched(address: str, home: Path) -> list[str]:
    """What loading two hub ids prints in a process of its own, as the client reads its environment once."""
    own = {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    python = [sys.executable, "-W", "ignore", "-c", FETCH]
    ran = subprocess.run(
        python, env=os.environ | own, capture_output=True, text=True, check=True, timeout=120, cwd=ROOT
    )
    return ran.stdout.splitlines()


def test_a_hub_id_is_fetched(endpoint: str, tmp_path: Path) -> None:
    found, missing = fetched(endpoint, tmp_path)
    assert found == "demo-8b 8030261248"
    assert "the hub has no such model" in missing


def test_each_failure_of_the_hub_gets_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own exception tree, without its half minute of retries."""
    errors = types.SimpleNamespace()
    errors.EntryNotFoundError = type("EntryNotFoundError", (Exception,), {})
    errors.LocalEntryNotFoundError = type("LocalEntryNotFoundError", (errors.EntryNotFoundError,), {})
    errors.HfHubHTTPError = type("HfHubHTTPError", (OSError,), {})
    errors.RepositoryNotFoundError = type("RepositoryNotFoundError", (errors.HfHubHTTPError,), {})
    lines = {
        errors.EntryNotFoundError: "without a config.json",
        errors.LocalEntryNotFoundError: "cannot be reached",
        errors.RepositoryNotFoundError: "no such model",
        errors.HfHubHTTPError: "cannot be fetched from the hub: gone",
    }
    for kind, line in lines.items():

        def fail(*asked: str, kind: type[Exception] = kind) -> str:
            raise kind("gone\nand more")

        client = types.SimpleNamespace(errors=errors, hf_hub_download=fail)
        monkeypatch.setitem(sys.modules, "huggingface_hub", client)
        with pytest.raises(InputError, match=line) as caught:
            load("acme/demo-8b")
        assert "\n" not in str(caught.value)


def test_without_the_extra_a_line_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"pip install 'specmodel\[hub\]'"):
        load("acme/demo-8b")


def test_what_looks_like_a_hub_id() -> None:
    looks: Callable[[str], bool] = hub.looks_like_id
    assert looks("acme/demo-8b")
    assert not any(map(looks, ["demo", "a/b/c", "/etc/passwd", "../up", "x/y.json", "x/y.gguf", "a /b"]))
