"""The project's own decode kernel as measured on a CPU: fitted on half of the grid, predicted on the other half."""

from __future__ import annotations

from pathlib import Path

import pytest

from specmodel.calibration import calibrate
from specmodel.errors import InputError
from specmodel.kernel_times.layer_rows import crossing
from specmodel.validation import LayerErrors, ProductErrors, validate

HERE = Path(__file__).parent.parent / "hardware" / "measured" / "own_kernel"
DEVICE = str(HERE / "cpu-amd-epyc.toml")


def half(kind: str, which: int, folder: Path) -> Path:
    """Every other row, in the order measured, which is random."""
    lines = (HERE / f"cpu-amd-epyc-{kind}.csv").read_text(encoding="utf-8").splitlines()
    comments = [line for line in lines if line.startswith("#")]
    header, *rows = lines[len(comments) :]
    path = folder / f"{kind}-{which}.csv"
    path.write_text("\n".join([*comments, header, *rows[which::2]]) + "\n", encoding="utf-8")
    return path


def test_half_of_the_grid_predicts_the_other_half_and_whole_layers(tmp_path: Path) -> None:
    known = [half(kind, 0, tmp_path) for kind in ("gemm", "attention")]
    fitted = calibrate(known, DEVICE).calibration
    unseen = [*(half(kind, 1, tmp_path) for kind in ("gemm", "attention")), HERE / "cpu-amd-epyc-layer.csv"]
    report = validate(unseen, device=DEVICE, calibration=fitted)
    assert report.problems == ()
    for file in report.files:
        assert file.median_abs_error is not None
        assert file.median_abs_error <= 0.15
    layer = report.files[2]
    assert isinstance(layer, LayerErrors)
    assert layer.ratio_median_abs_error is not None
    assert layer.ratio_median_abs_error <= 0.15
    # Where k = 4 free drafts stop paying, at alpha 0.3 to 0.7: 1.01 to 1.32 times the measured batch when written.
    off = [one.predicted / one.measured for one in layer.break_even if one.measured and one.predicted]
    assert len(off) == 5
    assert sum(1 / 1.3 <= factor <= 1.3 for factor in off) >= 4
    assert all(1 / 1.4 <= factor <= 1.4 for factor in off)


def test_products_and_attention_of_the_whole_grid_predict_whole_layers() -> None:
    """All widths from 2 to 9 at two contexts; no layer is fitted."""
    tables = {kind: HERE / f"cpu-amd-epyc-grid-{kind}.csv" for kind in ("gemm", "attention", "layer")}
    device = str(HERE / "cpu-amd-epyc-grid.toml")
    fitted = calibrate([tables["gemm"], tables["attention"]], device).calibration
    report = validate([tables["gemm"], tables["layer"]], device=device, calibration=fitted)
    products, layer = report.files
    assert isinstance(products, ProductErrors)
    assert [ridge.matrices for ridge in products.ridges] == [7]
    assert products.ridges[0].median_abs_error <= 0.1
    assert isinstance(layer, LayerErrors)
    assert layer.median_abs_error is not None
    assert layer.median_abs_error <= 0.05
    assert len(layer.ratios) == 48
    assert layer.ratio_median_abs_error is not None
    assert layer.ratio_median_abs_error <= 0.05
    off = [one.predicted / one.measured for one in layer.break_even if one.measured and one.predicted]
    assert len(off) == 28
    assert sum(1 / 1.3 <= factor <= 1.3 for factor in off) >= 0.85 * len(off)


def test_without_constants_a_layer_is_listed_with_the_reason() -> None:
    report = validate([HERE / "cpu-amd-epyc-layer.csv"], device=DEVICE, rows=True)
    assert report.rows is not None
    assert all(row.predicted is None and "calibrate" in str(row.reason) for row in report.rows)


@pytest.mark.parametrize(
    ("ratios", "level", "expected"),
    [
        ((1.0, 2.0, 4.0), 3.0, 2 * 2**0.5),  # half way from batch 2 to 4, in the logarithm
        ((1.0, 1.1, 1.2), 3.0, None),
        ((3.0, 4.0, 5.0), 2.0, None),
        ((1.0, 2.5, 1.5), 2.0, None),  # falls back below: it does not stay there
        ((1.0, None, 4.0), 2.0, None),
    ],
)
def test_a_crossing_is_read_off_between_batches(
    ratios: tuple[float | None, ...], level: float, expected: float | None
) -> None:
    found = crossing([1, 2, 4], ratios, level)
    assert found == (None if expected is None else pytest.approx(expected))


def test_a_layer_table_of_an_unknown_model_names_it(tmp_path: Path) -> None:
    path = tmp_path / "layer.csv"
    path.write_text(
        "fw,dtype,kv,layer,batch,context,width,us\nspecmodel,float32,fp32,no-such-model,1,64,1,10\n",
        encoding="utf-8",
    )
    fitted = calibrate(
        [HERE / f"cpu-amd-epyc-{kind}.csv" for kind in ("gemm", "attention")], DEVICE
    ).calibration
    rows = validate([path], device=DEVICE, rows=True, calibration=fitted).rows
    assert rows is not None
    assert "no-such-model" in str(rows[0].reason)
    with pytest.raises(InputError):
        calibrate([path], DEVICE)
