# Two commands on a fresh machine: `make demo` installs and runs the main job, `make test` installs and runs the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: demo test lint types bench fuzz wheel-check clean

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
