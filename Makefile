# Two commands on a fresh machine: `make demo` installs and runs the main job, `make test` installs and runs the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: demo test lint types bench bench-lake fuzz test-gpu-offline wheel-check clean

demo: $(READY)
	$(BIN)/specmodel optimize --alpha 0.8 --draft-cost 0.15
	$(BIN)/specmodel breakeven --ctx 16384

test: $(READY)
	$(BIN)/python -m pytest -q

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy specmodel tests examples

bench: $(READY)
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.surface
	$(BIN)/python -m benchmarks.calibrated
	$(BIN)/python -m benchmarks.planning

# Fifty million rounds and a 1 GB stream: minutes, and the extra `lake`.
bench-lake: $(READY)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[lake]'
	$(BIN)/python -m benchmarks.evidence_lake

# The Triton kernel without a GPU: under its interpreter against float64, and compiled for sm_80, sm_90 and sm_100.
test-gpu-offline: $(READY)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[gpu]'
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -q tests/gpu_offline/interpreted.py
	$(BIN)/python -m pytest -q -s tests/gpu_offline/compiled.py

fuzz: $(READY)
	SPECMODEL_FUZZ=20000 $(BIN)/python -m pytest -q tests/test_fuzz_configs.py

wheel-check: $(READY)
	sh .ci/wheel_check "$(BIN)/python"

clean:
	rm -rf $(VENV) build dist specmodel.egg-info

# Reinstalled only when what it is made from has changed.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)
