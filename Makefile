# Every target sets itself up from a clean clone: python3, pip and make are enough.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TFHE   := .venv-tfhe

.PHONY: help demo test test-all test-deployment chromium docs lint types bench clean .venv
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-zA-Z.-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# A stamp per set of dependencies: an installed set is installed again only when pyproject.toml changes.
$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

# PyTorch is asked for by number first, or its newest build comes with gigabytes for graphics cards.
$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[test,fhe,flower,torch]'
	@touch $@ $(VENV)/.core

# concrete-python wants an older numpy and PyTorch, whose processor-only build has to be there first.
$(TFHE)/.ready: pyproject.toml
	$(PYTHON) -m venv $(TFHE)
	$(TFHE)/bin/python -m pip install --quiet torch==2.13.0 'numpy<2' 'setuptools<80'
	$(TFHE)/bin/python -m pip install --quiet --editable '.[tfhe]' 'numpy<2' 'setuptools<80' 'pyarrow<21' pytest hypothesis
	@touch $@

.venv: $(VENV)/.test  ## the virtual environment with the core and the test tools

demo: $(VENV)/.core  ## the main job on real data, no download
	@$(BIN)/kernfed demo

test: $(VENV)/.test  ## the test suite, without what test-all adds
	$(BIN)/python -m pytest -m "not deployment"

test-deployment: $(VENV)/.test  ## a Flower deployment over TLS on this machine, and how it fails; minutes
	$(BIN)/python -m pytest -m deployment

lint: $(VENV)/.test  ## ruff: style and common mistakes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test  ## mypy --strict
	$(BIN)/mypy --strict

# The report is looked at in a real browser; without rights to install one its tests say that they were skipped.
chromium:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } \
	  || echo "no chromium: browser tests will be skipped"

docs: $(VENV)/.test  ## the documentation site, in build/site
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The deployment mostly waits, so it runs beside the suite, and TFHE after it; what they printed comes at the end.
test-all: $(VENV)/.test $(TFHE)/.ready chromium  ## all of it: with coverage, a browser, TFHE, a TLS deployment
	@mkdir -p build
	@( $(BIN)/python -m pytest -m deployment && $(TFHE)/bin/python -m pytest tests/secure/test_tfhe.py ) \
	  > build/beside.log 2>&1 & beside=$$!; \
	$(BIN)/python -m pytest -m "not deployment" --cov --cov-report=term; suite=$$?; \
	wait $$beside; others=$$?; cat build/beside.log; \
	[ $$suite -eq 0 ] && [ $$others -eq 0 ]

bench: $(VENV)/.test  ## speed as ratios in one run, as tables and JSON
	$(BIN)/python benchmarks/geometry.py

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(TFHE) .pytest_cache .mypy_cache .ruff_cache .coverage build dist
