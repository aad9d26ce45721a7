# make demo: private training on real data, from nothing.  make test: lint, types, quick tests.  make e2e: the long matrix.
# make deploy-test: real containers, built and run.
PYTHON ?= python3
VENV := .venv
BIN := $(abspath $(VENV))/bin
READY := $(VENV)/.ready
export PATH := $(BIN):$(PATH)
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1
export RAY_USAGE_STATS_ENABLED := 0

.PHONY: demo test lint e2e deploy-test clean
.DELETE_ON_ERROR:

$(READY): pyproject.toml
	@test -L fedveil/privacy || { echo "fedveil/privacy is not a link: clone on a file system with symbolic links (on Windows: WSL2)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[simulation,data,dev]'
	@touch $@

demo: $(READY)
	$(BIN)/python benchmarks/demo.py

lint: $(READY)
	ruff check .
	ruff format --check .
	mypy -p fedveil
	lint-imports

test: lint
	$(BIN)/python -m pytest -q

e2e: $(READY)
	$(BIN)/python -m pytest -q -m e2e

deploy-test: $(READY)
	$(BIN)/python -m pytest -q -m deploy tests/deploy

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
