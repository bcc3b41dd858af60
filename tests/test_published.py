"""Published speedups: names read as catalogue entries, rows predicted, errors within what was promised."""

from __future__ import annotations

import csv
import json
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from specmodel import engine_fit
from specmodel.bands import band_for, speedup_band
from specmodel.catalog import engine
from specmodel.deployment import deploy
from specmodel.drafters.names import drafter
from specmodel.drafters.sources import DraftModel, SparseSelf
from specmodel.drafters.trained import Eagle3, MtpModules, Parallel
from specmodel.errors import InputError
from specmodel.model import Model
from specmodel.passes import Split
from specmodel.published import names as published_names
from specmodel.published.drafts import NamedDraft
from specmodel.published.drafts import drafter as published_drafter
from specmodel.published.errors import validate_published
from specmodel.published.runs import situation
from specmodel.published.table import NUMBERS, TEXTS, is_published, read_published
from specmodel.speculation import Speculation
from specmodel.validation import validate

SHIPPED = sorted(
    (file for file in (files("specmodel.hardware") / "published").iterdir() if file.name.endswith(".csv")),
    key=lambda file: file.name,
)
COLUMNS = (*TEXTS, *NUMBERS)


def _write(path: Path, *rows: dict[str, object]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


ROW: dict[str, object] = {
    "id": "one",
    "source": "made up",
    "target_model": "Llama-3.1-8B-Instruct",
    "draft": "EAGLE-3 head",
    "method": "EAGLE-3 chain",
    "gpu": "H100-80GB",
    "num_gpus": 1,
    "engine": "vLLM",
    "dtype": "bf16",
    "batch": 4,
    "context": 1024,
    "k": 3,
    "accept_len": 2.4,
    "speedup": 1.7,
}


@pytest.mark.parametrize(
    ("name", "expected", "weights"),
    [
        ("Llama-2-Chat-7B", "llama-2-7b", "bf16"),
        ("Vicuna-13B", "llama-2-13b", "bf16"),
        ("Llama-3-70B-Instruct", "llama-3.1-70b", "bf16"),
        ("Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b", "bf16"),
        ("Qwen3-Next-80B-A3B-Instruct-FP8", "qwen3-next-80b-a3b", "fp8"),
        ("nvidia/Llama-3.3-70B-Instruct-FP4", "llama-3.1-70b", "nvfp4"),
        ("Qwen3-32B-AWQ", "qwen3-32b", "awq"),
        ("DeepSeek-R1-0528", "deepseek-v3", "fp8-block"),
        ("DeepSeek-R1-Distill-Qwen-14B", "qwen2.5-14b", "bf16"),
        ("QwQ-32B", "qwen2.5-32b", "bf16"),
        ("PARD-Qwen3-0.6B", "qwen3-0.6b", "bf16"),
        ("OPT-13B", "llama-2-13b", "bf16"),
    ],
)
def test_published_names_of_models(name: str, expected: str, weights: str) -> None:
    model, said = published_names.model(name)
    assert model.name == expected
    assert model.precision.weights.name == weights
    assert said, "what was read into the name is told"


@pytest.mark.parametrize("name", ["T5-XXL (11B, encoder-decoder)", "Ling-flash-2.0", "small draft model", ""])
def test_unknown_models_are_not_guessed(name: str) -> None:
    with pytest.raises(InputError, match="no catalogue entry"):
        published_names.model(name)


def test_published_names_of_machines_and_engines() -> None:
    named = {
        "H100-80GB": "h100-sxm",
        "8x A100 (80GB)": "a100-sxm-80",
        "A100-80GB-PCIe": "a100-pcie-80",
        "H20": "h20",
    }
    for name, device in named.items():
        assert published_names.device(name).id == device
    assert published_names.gpus_in_name("8x A100 (80GB)") == 8
    assert published_names.engine("SGLang v0.5.9") == ("sglang", ())
    assert published_names.engine("Sequoia (HF + CUDA graphs)")[0] == "sequoia"
    assert published_names.engine("HuggingFace (Spec-Bench)")[0] == "transformers"
    assert published_names.engine("never heard of")[1], "an assumption is told"
    with pytest.raises(InputError, match="outside the device"):
        published_names.device("L40 (weights offloaded to CPU over PCIe 4)")


@pytest.mark.parametrize(
    ("method", "draft", "kind", "branching"),
    [
        ("EAGLE-3 tree topk=4", "head", Eagle3, 4),
        ("self-speculation, sparse KV (StreamingLLM)", "self (StreamingLLM KV budget 512)", SparseSelf, 1),
        ("SpecInfer tree 5x8", "JackFram/llama-68m", DraftModel, 5),
        ("DFlash block diffusion", "DFlash", Parallel, 1),
        ("P-EAGLE", "head", Parallel, 1),
        ("PARD", "PARD-Llama-3.2-1B", Parallel, 1),
    ],
)
def test_published_names_of_drafts(method: str, draft: str, kind: type, branching: int) -> None:
    target, _ = published_names.model("Llama-3.1-8B")
    nodes = 40 if "tree" in method else None
    found, k, _ = published_drafter(NamedDraft(method, draft, 8, nodes), target, Split())
    assert isinstance(found.method, kind)
    assert (k, found.branching) == (8, branching)
    if nodes:
        assert found.width(8) == nodes, "tree_nodes counts the root"
    groups = found.launches(8, batch=1, context=512, split=Split())
    assert sum(group.count for group in groups) == (1 if kind is Parallel else 8)


def test_an_mtp_draft_needs_a_target_with_modules() -> None:
    target, _ = published_names.model("DeepSeek-R1")
    found, _, _ = published_drafter(NamedDraft("MTP", "nextn", 1, None), target, Split())
    assert isinstance(found.method, MtpModules)
    with pytest.raises(InputError, match="no MTP module"):
        published_drafter(NamedDraft("MTP", "", 1, None), published_names.model("Llama-2-7B")[0], Split())


def test_a_row_is_predicted_as_the_same_deployment_is(tmp_path: Path) -> None:
    """The row of the file against the library asked directly."""
    run = read_published(_write(tmp_path / "one.csv", ROW)).runs[0]
    setting = deploy("llama-3.1-8b", "h100-sxm", engine="vllm")
    assert isinstance(setting.model, Model)
    speculation = Speculation(setting, drafter("eagle3", setting.model))
    cost = speculation.round_time(3, 4, 1024, tokens=2.4).seconds / speculation.plain_seconds(4, 1024)
    assert situation(run).speedup() == pytest.approx(2.4 / float(cost), rel=1e-12)


def test_what_a_row_leaves_out_is_assumed_and_told(tmp_path: Path) -> None:
    short = {**ROW, "context": "", "num_gpus": "", "batch": "", "target_model": "Llama-3.1-70B-Instruct"}
    errors, rows, problems = validate_published(_write(tmp_path / "short.csv", short))
    assert errors.predicted_rows == 1
    assert not problems
    told = " ".join(rows[0].assumed)
    for words in (
        "context not given: taken as 512",
        "batch not given",
        "taken as 2, the fewest that hold",
        "llama-3.1-70b",
    ):
        assert words in told


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"target_model": "T5-XXL"}, "no catalogue entry"),
        ({"gpu": "TPU v4"}, "gpu"),
        ({"accept_len": ""}, "no acceptance"),
        ({"accept_len": "0.5"}, "below 1"),
        ({"batch": "many"}, "batch"),
        ({"k": "2.5"}, "k = "),
        ({"k": "", "method": "chain", "draft": "Llama-3.2-1B"}, "k"),
        ({"draft": "small one", "method": "draft model"}, "no catalogue entry"),
        ({"engine": "Sequoia offload"}, "outside the device"),
        ({"num_gpus": "7"}, "taken"),
    ],
)
def test_what_cannot_be_modelled_is_listed_with_the_reason(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    errors, rows, _ = validate_published(_write(tmp_path / "bad.csv", {**ROW, **change}))
    assert errors.rows == 1
    if rows[0].predicted is not None:  # seven GPUs: predicted on one, and said so
        assert "target on 1 of 7 GPUs" in " ".join(rows[0].assumed)
        return
    assert reason in (rows[0].reason or "")
    assert errors.median_abs_error is None


def test_rates_become_tokens_as_their_engine_means_them(tmp_path: Path) -> None:
    by_rate = {**ROW, "accept_len": "", "accept_rate": "45"}
    served = read_published(_write(tmp_path / "a.csv", by_rate)).runs[0]
    assert situation(served).tokens == pytest.approx(1.0 + 0.45 * 3)
    paper = read_published(_write(tmp_path / "b.csv", {**by_rate, "engine": "HuggingFace"})).runs[0]
    assert situation(paper).tokens == pytest.approx(1.0 + 0.45 + 0.45**2 + 0.45**3)


def test_prefill_dilutes_a_rate_over_whole_requests(tmp_path: Path) -> None:
    decoding = read_published(_write(tmp_path / "a.csv", ROW)).runs[0]
    requests = read_published(
        _write(tmp_path / "b.csv", {**ROW, "note": "mean prompt 2000, mean output 100 tokens"})
    ).runs[0]
    assert 1.0 < situation(requests).speedup() < situation(decoding).speedup()


def test_tables_are_told_apart_by_their_header(tmp_path: Path) -> None:
    assert is_published(_write(tmp_path / "a.csv", ROW))
    kernels = tmp_path / "k.csv"
    kernels.write_text("fw,dtype,m,n,k,us\nvllm,bfloat16,1,4096,4096,10\n")
    assert not is_published(kernels)
    assert not is_published(tmp_path / "missing.csv")
    report = validate([tmp_path / "a.csv", kernels], device="h100-sxm", rows=True)
    assert [one.kind for one in report.files] == ["published", "gemm"]
    answer = json.loads(report.to_json())
    first = answer["rows"][0]
    assert first["unit"] == "speedup"
    assert {"file", "id", "row", "measured", "predicted", "reason"} <= first.keys()
    assert first["low"] < first["predicted"] < first["high"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"target_model,gpu,speedup\n", "no rows"),
        (b"target_model,gpu\nx,y\n", "lack speedup"),
        (b"target_model,gpu,speedup\n\xff\xfe,a,1\n", "no UTF-8"),
        (b"target_model,gpu,speedup,gpu\na,b,1,c\n", "twice"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_published(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_shipped_figures_are_predicted(file: Path) -> None:
    errors, rows, problems = validate_published(file)
    assert not problems
    assert errors.predicted_rows == errors.rows == len(rows)
    assert errors.median_abs_error is not None
    assert errors.median_abs_error < 0.08
    assert errors.ideal_median_abs_error is not None
    assert errors.median_abs_error < 0.5 * errors.ideal_median_abs_error
    for row in rows:
        assert row.predicted is not None
        assert row.low is not None
        assert row.high is not None
        assert row.low < row.predicted < row.high


def test_passes_of_magicdec_in_absolute_time() -> None:
    """T_AR and T_V as printed (arXiv:2408.11049, tables 1 to 7): up to 100k cached tokens, on 4 and 8 GPUs."""
    off: dict[str, list[tuple[float, float]]] = {"A100": [], "H100": []}
    ratios = []
    for run in read_published(next(file for file in SHIPPED if file.name == "magicdec.csv")).runs:
        gpu = run.text("gpu")
        one = situation(run)
        setting = one.deployment
        plain = float(setting.plain_seconds(one.batch, one.context))
        width = one.speculation.drafter.width(one.k)
        kernels = setting.pass_time(one.batch, one.context, width).seconds
        verify = float(setting.engine.target_seconds(kernels, layers=setting.layers, gpus=setting.tp))
        printed = [float(re.match(r"[\d.]+", run.tag(tag) or "")[0]) * 1e-3 for tag in ("T_AR", "T_V")]  # type: ignore[index]
        if gpu in off:
            off[gpu].append((plain / printed[0] - 1.0, verify / printed[1] - 1.0))
        ratios.append((verify / plain) / (printed[1] / printed[0]) - 1.0)
    assert np.median(np.abs(off["H100"])) < 0.12
    assert np.median(np.abs(off["A100"])) < 0.18
    assert np.median(np.abs(ratios)) < 0.08


def test_development_rows_within_what_was_promised(shared: Path) -> None:
    """Tier A rows that are not suspect, every source weighing the same."""
    errors, _, _ = validate_published(shared / "published" / "speedups.csv")
    assert errors.rows == 989
    assert errors.scored_rows >= 0.85 * 417
    assert errors.median_abs_error is not None
    assert errors.mean_abs_error is not None
    assert errors.ideal_median_abs_error is not None
    assert errors.median_abs_error < 0.08
    assert errors.mean_abs_error < 0.12
    assert errors.ideal_median_abs_error > 3.0 * errors.median_abs_error
    assert errors.losses.share is not None
    assert errors.losses.share >= 0.75
    assert errors.gains.share is not None
    assert errors.gains.share >= 0.95


def _samples() -> engine_fit.Samples:
    blank = engine_fit.blank_engines()
    return engine_fit.samples(
        [situation(run, blank) for file in SHIPPED for run in read_published(file).runs]
    )


def test_shipped_times_come_from_the_fit() -> None:
    """From the figures that ship alone, MagicDec's constants are found again: no other source has that engine."""
    fitted = engine_fit.fit_published(_samples())
    shipped, found = engine("magicdec"), fitted.engines["magicdec"]
    for name in ("target_pass_s", "draft_pass_s", "round_s"):
        assert getattr(found, name) == pytest.approx(getattr(shipped, name), rel=0.25)


def test_an_engine_without_rows_takes_its_style() -> None:
    fitted = engine_fit.fit_published(_samples())
    assert fitted.engines["llama.cpp"].round_s == pytest.approx(fitted.styles["captured"]["round_s"])


def test_sources_left_out_are_predicted() -> None:
    rows = _samples()
    off = np.abs(engine_fit.leave_one_source_out(rows) / rows.speedup - 1.0)
    by_source = [np.median(off[rows.source == source]) for source in np.unique(rows.source)]
    assert np.median(by_source) < 0.15
    only = rows.where(rows.source == rows.source[0])
    with pytest.raises(InputError, match="only source"):
        engine_fit.leave_one_source_out(only)


def test_bands_by_kind_of_answer() -> None:
    setting = deploy("llama-3.1-8b", "h100-sxm", engine="vllm")
    found = drafter("eagle3", setting.model)  # type: ignore[arg-type]
    low, high = speedup_band(Speculation(setting, found))
    assert low is not None
    assert high is not None
    assert 0.5 < low < 1.0 < high < 1.5
    kernels = band_for(engine("ideal"))
    assert kernels is not None
    assert kernels.middle < 1.0, "without engine time predictions are too high"
    assert band_for(engine("vllm"), "textbook") is None
    assert band_for(engine("tensorrt-llm")) != band_for(engine("sglang"))
