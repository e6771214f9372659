# Two commands do everything on a new machine: `make train` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.PHONY: setup train test lint lock clean

setup: $(STAMP)

# --no-deps: the list is complete, and gives the same environment everywhere
$(STAMP): requirements/cpu.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps -r requirements/cpu.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

train: setup
	$(BIN)/da3po train --algo da3po --lambda 2.0 --overwrite --name demo $(ARGS)

test: setup
	$(BIN)/python -m pytest $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# resolve the pinned list anew from requirements/cpu.in
lock: setup
	$(BIN)/python scripts/lock_cpu.py

clean:
	rm -rf $(VENV) runs build dist
