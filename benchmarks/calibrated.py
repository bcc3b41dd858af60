"""A million calibrated step times of an architecture, and a fit of all measured tables that ship."""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from specmodel import catalog
from specmodel.calibration import calibrate
from specmodel.kernel_times.calibrated import Calibrated
from specmodel.passes import forward_pass
from specmodel.validation import shipped_tables

STEPS_SECONDS, FIT_SECONDS, ALLOWED_BYTES = 3.0, 20.0, 1.5e9


def main() -> None:
    """Print both times and the peak memory."""
    model, timing = catalog.model("llama-3.1-8b"), Calibrated(catalog.device("h100-sxm"))
    random = np.random.default_rng(0)
    batch, context, width = (random.integers(1, most, 1_000_000).astype(float) for most in (512, 100_000, 9))
    start = time.perf_counter()
    timed = timing.time(forward_pass(model, batch=batch, context=context, width=width))
    steps = time.perf_counter() - start
    start = time.perf_counter()
    fits = calibrate(shipped_tables()).calibration.fits
    fitted = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"calibrated: {np.size(timed.seconds):,} step times in {steps:.2f} s, {len(fits)} fits in {fitted:.1f} s, "
        f"process peak {peak / 1e9:.2f} GB"
    )
    if steps > STEPS_SECONDS or fitted > FIT_SECONDS or peak > ALLOWED_BYTES:
        sys.exit(1)


if __name__ == "__main__":
    main()
