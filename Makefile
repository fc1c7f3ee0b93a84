# Every target sets itself up from a clean clone: python3, pip and make are enough.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: help demo test test-all lint types bench clean .venv
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-zA-Z.-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# A stamp per set of dependencies: an installed set is installed again only when pyproject.toml changes.
$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@ $(VENV)/.core

.venv: $(VENV)/.test  ## the virtual environment with the core and the test tools

demo: $(VENV)/.core  ## the main job on real data, no download
	@$(BIN)/kernfed demo

test: $(VENV)/.test  ## the whole test suite
	$(BIN)/python -m pytest

lint: $(VENV)/.test  ## ruff: style and common mistakes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test  ## mypy --strict
	$(BIN)/mypy --strict

test-all: $(VENV)/.test  ## the suite with coverage
	$(BIN)/python -m pytest --cov --cov-report=term

bench: $(VENV)/.test  ## speed as ratios in one run, as tables and JSON
	$(BIN)/python benchmarks/geometry.py

clean:  ## remove what the other targets made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .coverage build dist
