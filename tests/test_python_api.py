"""The verbs from Python: NumPy scalars, paths and objects are taken, and what cannot be meant is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specmodel
from specmodel import catalog
from specmodel.errors import InputError

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def setting() -> specmodel.Deployment:
    return specmodel.deploy()


def test_no_module_carries_a_public_name(setting: specmodel.Deployment) -> None:
    """A module of that name would take the place of the function as soon as it is imported."""
    for name in specmodel.__all__:
        assert not (ROOT / "specmodel" / f"{name}.py").exists(), name
        assert not (ROOT / "specmodel" / name).exists(), name
    assert specmodel.device("h100").id == "h100-sxm"


def test_numpy_numbers_are_numbers(setting: specmodel.Deployment) -> None:
    four: Any = np.int64(4)
    two: Any = np.float64(2.0)
    ctx: Any = np.int32(640)
    half: Any = np.float32(0.5)
    rates: Any = np.array([0.5, 0.25])
    assert specmodel.step(setting, batch=four, context=ctx, k=two).seconds == pytest.approx(
        specmodel.step(setting, batch=4, context=640, k=2).seconds, rel=1e-15
    )
    assert (
        specmodel.memory(setting, context=ctx, batch=two).max_batch
        == specmodel.memory(setting, context=640).max_batch
    )
    found = specmodel.breakeven(setting, context=ctx, alpha=half, k=two, max_k=four)
    assert found.k == 2
    assert found.to_dict()["context"] == 640
    best = specmodel.optimize(
        draft_cost=np.float64(0.15), alpha=0.8, k=two, max_k=four, deployment=setting, batch=four
    )
    assert best.best.k == 2
    assert specmodel.optimize(draft_cost=0.1, acceptance=rates).by_k[-1].k == 2
    assert specmodel.tree(setting, rank_acceptance=rates, nodes=two).nodes == 2


def test_arrays_broadcast_below_the_verbs(setting: specmodel.Deployment) -> None:
    batch, context, width = (
        np.array([1, 8, 64])[:, None, None],
        np.array([512, 4096])[:, None],
        np.arange(1, 6),
    )
    table = np.asarray(setting.verify_seconds(batch, context, width))
    assert table.shape == (3, 2, 5)
    for i, j, n in np.ndindex(table.shape):
        one = setting.verify_seconds(int(batch[i, 0, 0]), int(context[j, 0]), int(width[n]))
        assert table[i, j, n] == pytest.approx(float(one), rel=1e-12)
    tokens = np.array([1.0, 1.7, 2.19])
    grid = setting.speedups(
        tokens, k=np.arange(3), batch=batch, context=context, draft_cost=0.1, charge="added"
    )
    assert np.shape(grid) == (3, 2, 3)
    assert np.asarray(grid)[:, :, 0] == pytest.approx(1.0)


def test_models_and_devices_come_as_objects_and_paths(tmp_path: Path, shared: Path) -> None:
    config = shared / "cases" / "configs" / "llama-3.1-8b.json"
    by_path = specmodel.deploy(config, weights="fp8")
    model = catalog.model(str(config))
    by_object = specmodel.deploy(model, weights="fp8", kv="fp8")
    assert by_object.model.weight_bytes == by_path.model.weight_bytes < 0.6 * model.weight_bytes
    assert by_object.describe()["kv"] == "fp8"
    machine = catalog.custom_device(memory="96 GB", base="h100")
    assert specmodel.deploy(device=machine).device.memory_bytes == 96e9


def test_one_name_is_one_name(setting: specmodel.Deployment) -> None:
    assert [row.method.split(" ")[0] for row in specmodel.drafts(setting, names="eagle3").drafts] == [
        "eagle3"
    ]
    (row,) = specmodel.drafts(setting, names="eagle3", acceptance=[0.7, 0.5]).drafts
    assert row.source == "measured"
    assert row.tokens_per_round <= 1 + 0.7 + 0.5
    table = ROOT / "hardware" / "measured" / "allreduce.csv"
    assert len(specmodel.validate(str(table)).files) == 1


@pytest.mark.parametrize(
    ("verb", "given", "named"),
    [
        (
            specmodel.optimize,
            {"draft_cost": 0.1, "alpha": 0.8, "deployment": "llama"},
            "deployment = 'llama'",
        ),
        (specmodel.breakeven, {"deployment": ""}, "deployment = ''"),
        (specmodel.breakeven, {"draft": 3}, "draft = 3"),
        (specmodel.optimize, {"draft_cost": 0.1, "acceptance": 0.8}, "acceptance = 0.8"),
        (specmodel.optimize, {"draft_cost": 0.1, "acceptance": "0.8"}, "acceptance = '0.8'"),
        (specmodel.optimize, {"draft_cost": 0.1, "alpha": "0.8"}, "alpha = '0.8'"),
        (specmodel.optimize, {"draft_cost": 0.1, "alpha": 0.8, "charge": None}, "charge = None"),
        (specmodel.deploy, {"model": None}, "model = None"),
        (specmodel.deploy, {"device": 7}, "device = 7"),
        (specmodel.deploy, {"engine": None}, "engine = None"),
        (specmodel.deploy, {"weights": 8}, "weights = 8"),
        (specmodel.deploy, {"calibration": 8}, "calibration = 8"),
        (specmodel.deploy, {"model": "lecture-7b", "kv": "fp8"}, "kv = 'fp8'"),
        (specmodel.tree, {"rank_acceptance": 0.5}, "rank acceptance = 0.5"),
        (specmodel.drafts, {"names": 4}, "names = 4"),
        (specmodel.tokens_per_round, {"alpha": "x", "k": 2}, "alpha = 'x'"),
        (specmodel.PerPosition, {"rates": 0.5}, "acceptance = 0.5"),
        (specmodel.validate, {"framework": 3}, "framework = 3"),
        (specmodel.derive, {"topic": 3}, "topic = 3"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(verb: Any, given: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as caught:
        verb(**given)
    assert str(caught.value).startswith(named)
    assert "\n" not in str(caught.value)


def test_answers_hold_what_json_can_say(setting: specmodel.Deployment) -> None:
    """Also at the edges: alpha 1, a free draft, nothing that fits, k 0."""
    for answer in (
        specmodel.optimize(draft_cost=0.0, alpha=1.0),
        specmodel.optimize(draft_cost=0.0, alpha=0.0, max_k=0),
        specmodel.breakeven(setting, context=512, k=0),
        specmodel.breakeven(specmodel.deploy("llama-3.1-70b"), context=512),
        specmodel.breakeven(setting, context=512, alpha=1.0, draft_cost=0.0, max_k=64),
        specmodel.step(specmodel.deploy("lecture-7b")),
        specmodel.memory(specmodel.deploy("lecture-7b", memory_fraction=0.01)),
    ):
        assert answer.to_json().count("NaN") == answer.to_json().count("Infinity") == 0
