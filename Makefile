# MegaTrace: everything below creates what it needs. On a fresh machine: Python >= 3.10, gcc and make.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Two, because that is what small CI machines have; raise it with `make test WORKERS=8`.
WORKERS ?= 2
PYTEST_ARGS ?=
NATIVE_SOURCES := $(wildcard native/*.h native/*.c native/*.cc native/*.cpp native/CMakeLists.txt)

.PHONY: help venv demo test lint format docs bench-speed bench-accuracy fuzz clean

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## a virtual environment in .venv with MegaTrace in it, editable

$(STAMP): pyproject.toml CMakeLists.txt $(NATIVE_SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "error: MegaTrace needs Python 3.10 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1); name another one with make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "error: $(PYTHON) cannot make a virtual environment (Debian and Ubuntu package that apart); run: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing MegaTrace and its tools into $(VENV) (a minute or two the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

test: $(STAMP) ## all tests this machine can run
	@$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

clean: ## remove what make made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
