# Two targets for a newcomer: `make demo` and `make test`. All others are for development.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
DEMO_STAMP = $(VENV)/.demo
PYTEST = $(BIN)/python -m pytest -q
# The tests start Python a thousand times: keep the compiled modules.
unexport PYTHONDONTWRITEBYTECODE
# Test processes of `make test`: one per core.
JOBS ?= 2
# Part of the long matrices to run: 2/3 is the second third. Default: all.
PART ?= 1/1
# Rows of the matrix to run, 2 minutes each: 'torch-2.9.1 python-*'. Default: all.
ROWS ?=

.PHONY: help install demo test test-real test-long test-frameworks test-faults test-nccl test-cluster test-matrix test-all check lint types imports docs bench pictures clean

help:            ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 23

install: $(STAMP) ## set up .venv, and nothing else

# venv creates pip last, so an interrupted set-up is repeated.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "distui needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo 'Creating $(VENV)'
	@$(PYTHON) -m venv $(VENV) || { echo "Install python3-venv first: apt-get install python3-venv" >&2; exit 1; }

$(STAMP): pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -e '.[torch]' --group dev
	@touch $(STAMP)

# Install only what the demo needs, and show the progress: torch is large.
$(DEMO_STAMP): pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install -e '.[torch]' --group demo
	@touch $(DEMO_STAMP)

# The environment of `make install` also has what the demo needs.
demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO_STAMP)) ## train the shipped example on 2 ranks and look at it
	$(BIN)/python tests/rigs/nvml/demo.py

test: install    ## in-process tests, one real run of each kind (2 minutes)
	$(PYTEST) -m 'not real and not long' -n $(JOBS) --dist loadgroup

test-real: install ## all that starts real processes, one by one (15 minutes)
	$(PYTEST) -m 'real and not long'

test-long: install ## long matrices and slow real tests; PART=1/8 for some
	$(BIN)/python -m pip install --quiet --group nccl --no-deps
	$(PYTEST) -m long --part $(PART)

test-frameworks: install ## tests with Accelerate, DeepSpeed, trackers
	$(BIN)/python -m pip install --quiet --group hf --group trackers
	$(PYTEST) tests/launchers tests/strategies/test_accepted.py tests/runners/inrank/test_training_signals.py

test-faults: install ## really broken jobs: does the diagnosis name the fault
	$(PYTEST) tests/faults --part $(PART)

test-nccl: install ## NCCL's host code; DISTUI_NCCL_SOURCES=its tarballs
	$(PYTEST) tests/nccl_ranks -m long -n 2 --dist load --part $(PART)

test-cluster: install ## a Slurm cluster in namespaces, through SkyPilot (as root)
	$(BIN)/python -m tests.rigs.slurm prepare
	$(PYTEST) tests/cluster tests/presets/test_skypilot_task.py # needs the schema that the line above installs

test-matrix: install ## other versions of torch (gigabytes); ROWS='torch-*'
	$(PYTEST) tests/matrix --rows '$(ROWS)'

test-all: test test-real test-long test-frameworks test-faults test-nccl test-cluster ## all of these

check: lint types imports ## lint, format, types, imports

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install
	$(BIN)/mypy -p distui
	@for one in $$(find tests -name conftest.py); do MYPYPATH=tests $(BIN)/mypy "$$one" || exit 1; done # all have one module name
	MYPYPATH=tests/tui $(BIN)/mypy tests --exclude '(^|/)conftest\.py$$' # tests/tui imports its conftest by name

imports: install
	$(BIN)/lint-imports

docs: install    ## the documentation as a site in .site; a broken link fails
	$(BIN)/python -m pip install --quiet --group docs
	$(BIN)/mkdocs build --strict --config-file .ci/mkdocs.yml

bench: install   ## the table of benchmarks.md; BENCH=--quick
	PYTHONPATH=tests $(BIN)/python -m tests.bench $(BENCH)

pictures: install ## docs/pictures, and .pictures in all sizes and looks
	$(BIN)/python -m pip install --quiet --group pictures
	PYTHONPATH=tests $(BIN)/python -m tests.pictures
	PYTHONPATH=tests $(BIN)/python -m tests.pictures.recording

clean:           ## remove what install and the tools made
	rm -rf $(VENV) .site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
