# Everything runs from .venv, which is made once and again when its inputs change.
# Needs only Python >= 3.11, make and a package index.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
DEMO ?=
BENCH ?=
BENCHMARKS := matmul grading roofline population serving

.PHONY: setup demo test serve lint bench

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nightowl needs Python 3.11 or later: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)  ## the whole night in minutes; DEMO='--minutes 60' and other options
	$(BIN)/nightowl demo $(DEMO)

test: $(STAMP)
	$(BIN)/python -m pytest -q --cov --cov-report=term:skip-covered --cov-fail-under=90

serve: $(STAMP)
	$(BIN)/nightowl model pull
	$(BIN)/nightowl serve

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)  ## every benchmark in full, half an hour; BENCH=--quick takes minutes
	set -e; for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name $(BENCH); done
