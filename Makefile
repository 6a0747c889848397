# Plain pip and one virtual environment. `make help` lists the verbs.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup tutorial lab notebooks check-notebooks data test reproduce chaos fuzz bench lint lock clean

# The first of these that runs and is Python 3.11 or newer; PYTHON=... overrides.
PYTHON ?= $(shell for p in python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.set-up
# More arguments for pytest, such as PYTEST_ARGS="-k scoring -x".
PYTEST_ARGS ?=
WORKERS ?= 2
# How often `make chaos` kills a run.
KILLS ?= 50
# How many cases `make fuzz` tries.
ANSWERS ?= 100000
FILES ?= 10000

help:  ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */|/' | awk -F'|' '{printf "  make %-15s %s\n", $$1, $$2}'

setup: $(STAMP)  ## Make .venv with the exact versions of requirements.lock (once)

$(STAMP): requirements.lock pyproject.toml
	@test -x $(PY) || test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; install it, or name it: make setup PYTHON=/path/to/python3.11" >&2; exit 2; }
	@test -x $(PY) || { echo "Making $(VENV) with $(PYTHON)"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing the packages of requirements.lock (the first time this downloads them)"
	@$(PY) -m pip install --disable-pip-version-check --quiet -r requirements.lock
	@$(PY) -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	@touch $(STAMP)

tutorial: setup  ## Run all notebooks and write the HTML report
	@HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 $(PY) -m cir_utils tutorial

lab: setup  ## Open the notebooks in JupyterLab
	@$(PY) -m jupyter lab notebooks

notebooks: setup  ## Execute the committed notebooks in place
	@HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 OMP_NUM_THREADS=1 $(PY) -m data_scripts.execute_notebooks

check-notebooks: setup  ## Run the committed notebooks again: their values must be those that are kept (long)
	@HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 OMP_NUM_THREADS=1 $(PY) -m data_scripts.execute_notebooks --check

data: setup  ## Draw the mini benchmarks anew, byte by byte as shipped
	@$(PY) -m data_scripts.build_data --workers $(WORKERS)

test: setup  ## Run the tests, notebooks included
	@HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 OMP_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) $(PYTEST_ARGS)

reproduce: setup  ## Run every mini condition again: figures must be those of results/ (long)
	@HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 OMP_NUM_THREADS=1 $(PY) -m cir_utils reproduce --run 'mini-*'

chaos: setup  ## Kill runs at 50 random moments; they must end as if nothing had happened
	@HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 OMP_NUM_THREADS=1 CIR_CHAOS_KILLS=$(KILLS) $(PY) -m pytest tests/test_chaos.py -s $(PYTEST_ARGS)

fuzz: setup  ## Try 100,000 malformed answers and 10,000 damaged files; each is read right or refused in words
	@HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 OMP_NUM_THREADS=1 CIR_FUZZ_ANSWERS=$(ANSWERS) CIR_FUZZ_FILES=$(FILES) $(PY) -m pytest tests/test_fuzz.py -s $(PYTEST_ARGS)

bench: setup  ## Time scoring against what it replaces, and count what pruning saves (long; on a quiet machine)
	@HF_HUB_OFFLINE=1 $(PY) -m benchmarks.pruning
	@HF_HUB_OFFLINE=1 $(PY) -m benchmarks.mini_profile
	@$(PY) -m benchmarks.bench

lint: setup  ## Check style and types
	@$(PY) -m ruff check .
	@$(PY) -m mypy

lock: setup  ## Write requirements.lock from the environment
	@$(PY) data_scripts/make_lock.py

clean:  ## Remove caches and builds (not .venv, not runs/)
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis report
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
