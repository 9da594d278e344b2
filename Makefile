# Everything below creates what it needs. On a fresh machine: Python >= 3.10, gcc, g++ and make.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Two workers, because that is what small CI machines have; raise it with `make test WORKERS=8`.
WORKERS ?= 2
PYTEST_ARGS ?=
# Every benchmark of speed is a module of its own; the rest of the folder judges accuracy or is shared.
SPEED := $(filter-out __init__ measure accuracy cases coverage coverage_around coverage_faults ingest_data optable_data,$(basename $(notdir $(wildcard benchmarks/*.py))))
NATIVE := $(wildcard native/*.h native/*.c native/*.cc native/*.cpp native/CMakeLists.txt)

.PHONY: help venv demo test lint format docs bench-speed bench-accuracy bench-rivals bench-cases bench-coverage fuzz clean

help: ## say what there is
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## a virtual environment in .venv with MegaTrace in it, editable

# The native part is built here, so a change of it or of the build makes the environment new.
$(STAMP): pyproject.toml CMakeLists.txt $(NATIVE)
	@command -v $(PYTHON) >/dev/null || \
	  { echo "error: there is no $(PYTHON); install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "error: MegaTrace needs Python 3.10 or newer, found $$($(PYTHON) -V 2>&1); name another one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "error: $(PYTHON) cannot make a virtual environment (Debian and Ubuntu package that apart); run: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python && $(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing MegaTrace and its tools into $(VENV) (a minute or two the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(STAMP) ## make a job with a fault, diagnose it
	@$(BIN)/megatrace demo

test: $(STAMP) ## all tests that this machine can run
	@$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

lint: $(STAMP) ## style, types, layers, sizes, generated pages
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "error: not formatted; run make format" >&2; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m tools.budget
	@$(BIN)/python -m tools.docs --check

format: $(STAMP) ## format the Python code and mend what ruff can mend
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

docs: $(STAMP) ## write the reference pages that follow from the code
	@$(BIN)/python -m tools.docs

bench-speed: $(STAMP) ## measure reading and analysis, write benchmarks/results/*.json
	@set -e; for name in $(SPEED); do echo "== $$name"; $(BIN)/python -m benchmarks.$$name; done

bench-accuracy: $(STAMP) ## score the fault matrix, write benchmarks/results/accuracy.json
	@$(BIN)/python -m benchmarks.accuracy

bench-rivals: $(STAMP) ## compare with published methods, write benchmarks/results/rivals.json
	@$(BIN)/python -m benchmarks.rivals

bench-cases: $(STAMP) ## print our verdict on each real case beside the right answer
	@$(BIN)/python -m benchmarks.cases

bench-coverage: $(STAMP) ## put published incidents on made machines, count what is found
	@$(BIN)/python -m benchmarks.coverage

# Random examples, many more than in `make test`; a failure prints how to repeat it. A test may take an hour here.
fuzz: $(STAMP) ## feed damaged input to every reader, for minutes
	@HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -n $(WORKERS) -o faulthandler_timeout=0 tests/property $(PYTEST_ARGS)

clean: ## remove what make made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
