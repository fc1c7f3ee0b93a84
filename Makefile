# Every target sets itself up from a clean clone: python3, pip and make are enough.
PYTHON  ?= python3
PYTHON313 ?= python3.13
WORKERS ?= auto
VENV    := .venv
BIN     := $(VENV)/bin
TFHE    := .venv-tfhe
OLDEST  := .venv-oldest
NEWEST  := .venv-3.13
# Tests of one file stay in one process and share what they set up. Files go to processes in the order in which they are
# collected: the many small ones of src come last, and no process waits for another's long one.
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Sites write every answer through to the disk. Where memory has room, tests wait for no disk; a process that is killed
# leaves the same files in both, and nothing here tests a machine that loses its power.
ROOM  := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 { print "--tmpdir=/dev/shm" }')
# A core for every process: threads of BLAS that wait for each other's core take twice the time of some tests, and those
# of OpenMP (boosting of scikit-learn) ten times. Tests of threads ask for them by number.
# $(call quickly,COMMAND) runs a command so, with its temporary files in memory, and removes them.
quickly = place=$$(mktemp -d $(ROOM)) && trap 'rm -rf "$$place"' EXIT && trap 'exit 130' INT TERM \
  && OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 TMPDIR=$$place $(1)
# Processes that tests start read compiled modules, also where the environment has this set.
unexport PYTHONDONTWRITEBYTECODE
QUICK    := not deployment and not slow
TEST_TOOLS := pytest pytest-xdist hypothesis mpmath pandas
# What runs without extras, in environments of other versions. The pictures of the site are those of one matplotlib.
CORE_TESTS := tests src --ignore=tests/test_site.py
# What no version of a dependency changes, so that the newest is enough: which module imports which, links of documents,
# and what is on the disk after a kill between two writes or two processes that write at once.
CORE_TESTS += --ignore=tests/test_flow.py --deselect=tests/test_docs.py::test_local_links_lead_somewhere \
  --deselect='tests/test_attacks.py::test_nothing_goes_wrong_in_a_slice[kills-0.03]' \
  --ignore=tests/federation/folding/test_crashes.py --ignore=tests/federation/folding/test_private_crashes.py

.PHONY: help demo test test-all test-deployment test-oldest test-newest test-installs chromium docs lint types attack bench clean .venv
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-zA-Z.-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# A stamp per set of dependencies: an installed set is installed again only when its pyproject.toml changes.
$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

# PyTorch is asked for by number first, or its newest build comes with gigabytes for graphics cards.
# What the papers depend on is part of what kernfed depends on.
$(VENV)/.test: pyproject.toml papers/pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[test,fhe,flower,serve,torch,text,onnx]'
	$(BIN)/python -m pip install --quiet --no-deps --editable papers
	@touch $@ $(VENV)/.core

# concrete-python wants an older numpy and PyTorch, whose processor-only build has to be there first.
$(TFHE)/.ready: pyproject.toml
	$(PYTHON) -m venv $(TFHE)
	$(TFHE)/bin/python -m pip install --quiet torch==2.13.0 'numpy<2' 'setuptools<80'
	$(TFHE)/bin/python -m pip install --quiet --editable '.[tfhe]' 'numpy<2' 'setuptools<80' 'pyarrow<21' pytest hypothesis
	@touch $@

# oldest.txt has the lowest version that pyproject.toml allows of every dependency of the core.
$(OLDEST)/.ready: pyproject.toml papers/pyproject.toml oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --constraint oldest.txt --editable . $(TEST_TOOLS)
	$(OLDEST)/bin/python -m pip install --quiet --no-deps --editable papers
	@touch $@

$(NEWEST)/.ready: pyproject.toml papers/pyproject.toml
	$(PYTHON313) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --editable . --editable papers $(TEST_TOOLS)
	@touch $@

.venv: $(VENV)/.test  ## the virtual environment with the core and the test tools

demo: $(VENV)/.core  ## the main job on real data, no download
	@$(BIN)/kernfed demo

test: $(VENV)/.test  ## the test suite, without what test-all adds
	@$(call quickly,$(BIN)/python -m pytest $(PARALLEL) -m "$(QUICK)")

test-deployment: $(VENV)/.test  ## a Flower deployment over TLS on this machine, and how it fails; minutes
	$(BIN)/python -m pytest -m deployment

test-oldest: $(OLDEST)/.ready  ## tests of the core, with the oldest versions that it may be installed with
	@$(call quickly,$(OLDEST)/bin/python -m pytest $(PARALLEL) -m "$(QUICK)" $(CORE_TESTS))

# A name in the path is not yet a Python: managers of versions leave one behind for every version they have.
test-newest:  ## the same with the newest versions on Python 3.13, where there is one
	@if $(PYTHON313) --version >/dev/null 2>&1; then \
	  $(MAKE) $(NEWEST)/.ready \
	    && $(call quickly,$(NEWEST)/bin/python -m pytest $(PARALLEL) -m "$(QUICK)" $(CORE_TESTS)); \
	else echo "no Python 3.13 on this machine: not tested on it"; fi

# Needs no environment of ours: it makes a new one for each install, with what a user gets and nothing else.
test-installs:  ## the README's commands where the core alone, or the core with one extra, is installed; minutes
	$(PYTHON) .ci/installs.py

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
test-all: $(VENV)/.test $(TFHE)/.ready chromium  ## all of it: slow tests, coverage, a browser, TFHE, a TLS deployment
	@mkdir -p build
	@( $(BIN)/python -m pytest -m deployment && $(TFHE)/bin/python -m pytest tests/secure/test_tfhe.py ) \
	  > build/beside.log 2>&1 & beside=$$!; \
	( $(call quickly,$(BIN)/python -m pytest $(PARALLEL) -m "not deployment" --cov --cov-report=term) ); suite=$$?; \
	wait $$beside; others=$$?; cat build/beside.log; \
	[ $$suite -eq 0 ] && [ $$others -eq 0 ]

attack: $(VENV)/.test  ## hostile files and messages, kills and liars, with what came of each; minutes
	$(BIN)/python -m attacks

bench: $(VENV)/.test  ## speed as ratios in one run, as tables and JSON
	$(BIN)/python benchmarks/geometry.py

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(TFHE) $(OLDEST) $(NEWEST) .pytest_cache .mypy_cache .ruff_cache .coverage build dist
