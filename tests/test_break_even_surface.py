"""Break-even over batch and context: acceptance needed, the flip."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmodel import deploy, tokens_per_round
from specmodel.acceptance import Geometric
from specmodel.answers.break_even_surface import alpha_needed, break_even_surface, flip_context
from specmodel.drafters.names import drafter
from specmodel.model import Model
from specmodel.operating_range import operating_range


@given(k=st.integers(1, 16), cost=st.floats(0.5, 20.0))
def test_the_alpha_needed_breaks_even_or_is_out_of_reach(k: int, cost: float) -> None:
    found = float(alpha_needed(np.array([k]), np.array([cost]))[0])
    if cost > k + 1:
        assert found == np.inf
    elif cost <= 1.0:
        assert found == 0.0
    else:
        assert float(tokens_per_round(found, k)) == pytest.approx(cost, rel=1e-9)


def test_a_cost_of_more_than_k_plus_one_is_unreachable() -> None:
    # Case C05: verifying two tokens costs 2.196 plain steps; it would need an acceptance of 1.196.
    assert alpha_needed(np.array([1]), np.array([2.196]))[0] == np.inf


@pytest.mark.parametrize("last", [16, 700, 40_000])
def test_the_flip_is_located_exactly(last: int) -> None:
    assert flip_context(lambda tried: [c <= last for c in tried], 100_000) == last


def test_flips_at_either_end() -> None:
    assert flip_context(lambda tried: [False] * len(tried), 4096) == 0
    assert flip_context(lambda tried: [True] * len(tried), 4096) is None
    assert flip_context(lambda tried: [None] * len(tried), 4096) is None


def test_past_the_flip_of_the_lecture_nothing_loses_and_before_it_something_does() -> None:
    setting = deploy("lecture-7b", "lecture-h100", fidelity="textbook")
    found = break_even_surface(setting, contexts=(640, 4096), alpha=0.8, charge="none", k=4)
    assert found.flip_context is not None
    before, past = (
        operating_range(setting, Geometric(0.8), context=context, charge="none", k=4).first_losing_batch
        for context in (found.flip_context, found.flip_context + 1)
    )
    assert before is not None
    assert past is None
    # 000, section 16.8: the critical context of k 4 without a bound on memory is 1,036 tokens.
    assert found.flip_context < 1037


def test_cells_agree_with_the_operating_range() -> None:
    setting = deploy(fidelity="calibrated")
    found = break_even_surface(setting, batches=(1, 64, 10_000), contexts=(1024,), alpha=0.7, draft_cost=0.1)
    one, _, huge = found.surface
    assert one.speedup == pytest.approx(
        operating_range(setting, Geometric(0.7), context=1024, draft_cost=0.1).speedup_at_1
    )
    assert not huge.fits
    assert huge.speedup is None


def test_a_named_draft_takes_its_time_and_memory() -> None:
    setting = deploy()
    assert isinstance(setting.model, Model)
    head = drafter("eagle3", setting.model)
    bare = operating_range(setting, Geometric(0.7), context=2048, draft_cost=0.0)
    drafted = operating_range(setting, Geometric(0.7), context=2048, drafter=head)
    assert drafted.memory_limit_batch < bare.memory_limit_batch
    assert drafted.speedup_at_1 is not None
    assert bare.speedup_at_1 is not None
    assert 1.0 < drafted.speedup_at_1 < bare.speedup_at_1
