# make demo   learn five tasks with one small network, about a minute
# make test   lint, types and all tests
# make quick  the tests without the slow ones and most parameters, about a minute
# make bench  speed as ratios against plain training, on whatever device there is
# make fuzz   mutated model files for SECONDS=60, from SEED=0 on
# make lives  lives of models, drawn at random, for SECONDS=60, from SEED=0 on
# make docs   the documentation site, in site/
#
# Each sets up .venv first and shows what it fetches. TORCH=cpu takes PyTorch's build without CUDA
# (https://download.pytorch.org/whl/cpu); `make demo` uses a torch that PYTHON has already.
# System packages are never installed unasked.

PYTHON ?= python3
TORCH ?=
VENV := .venv
BIN := $(VENV)/bin
SET_UP = $(PYTHON) scripts/set_up.py --venv $(VENV) --torch "$(TORCH)"
# Tests start many processes, which find everything compiled.
COMPILED := PYTHONDONTWRITEBYTECODE=

.PHONY: demo test quick check bench results fuzz lives docs clean

demo: $(VENV)/.core
	$(BIN)/tsn demo

test: check
	scripts/install_chromium.sh
	$(COMPILED) $(BIN)/pytest

quick: $(VENV)/.dev
	$(COMPILED) $(BIN)/pytest --quick

check: $(VENV)/.dev
	$(BIN)/ruff check src tests benchmarks scripts examples
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks --out benchmarks/results

results: $(VENV)/.dev
	$(BIN)/python scripts/make_results.py

SECONDS ?= 60
SEED ?= 0
fuzz: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz.py --seconds $(SECONDS) --seed $(SEED)

lives: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/lives.py --seconds $(SECONDS) --seed $(SEED)

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

$(VENV)/.core: pyproject.toml constraints.txt
	$(SET_UP) report --with pillow --take-torch
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	$(SET_UP) all,dev
	touch $@ $(VENV)/.core

$(VENV)/.docs: $(VENV)/.dev
	$(SET_UP) all,dev,docs
	touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
