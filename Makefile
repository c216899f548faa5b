# make demo   learn five tasks with one small network, about a minute
# make test   lint, types and all tests
# make quick  the tests without the slow ones
# make bench  speed as ratios against plain training, on whatever device there is
# make fuzz   mutated model files for SECONDS=60, from SEED=0 on
# make docs   the documentation site, in site/

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet install -c constraints.txt

.PHONY: demo test quick check bench fuzz docs clean

demo: $(VENV)/.core
	$(BIN)/tsn run --out runs/demo-$$(date +%Y%m%d-%H%M%S)

test: check
	$(BIN)/pytest

quick: $(VENV)/.dev
	$(BIN)/pytest -m "not slow"

check: $(VENV)/.dev
	$(BIN)/ruff check src tests benchmarks scripts
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks --out benchmarks/results

SECONDS ?= 60
SEED ?= 0
fuzz: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz.py --seconds $(SECONDS) --seed $(SEED)

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[report]"
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[all,dev]"
	if [ -x scripts/install_chromium.sh ]; then scripts/install_chromium.sh; fi
	touch $@ $(VENV)/.core

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) -e ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
