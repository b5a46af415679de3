# Two commands for a newcomer: `make demo` and `make test`. Everything else is for those who work here.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
PYTEST = $(BIN)/python -m pytest -q
# Test processes of `make test`, which start none of their own: one per core.
JOBS ?= 2
# Of the long matrices: 2/3 is the second third. All of it unless asked.
PART ?= 1/1
# Of the matrix: 'torch-2.9.1 python-*'. All of it unless asked.
ROWS ?=

.PHONY: help install demo test test-real test-long test-faults test-nccl test-cluster test-matrix test-all check lint types imports house bench pictures clean

help:            ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

install: $(STAMP) ## set up .venv, and nothing else

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "distui needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "Install python3-venv first: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -e '.[torch]' --group dev
	@touch $(STAMP)

demo: install    ## train the shipped example on 2 ranks and look at it
	$(BIN)/python tests/rigs/nvml/demo.py

test: install    ## in-process tests and one real run of each kind (6 minutes on 2 cores)
	$(PYTEST) -m 'not real and not long' -n $(JOBS) --dist loadgroup

test-real: install ## all that starts real processes, one test at a time (15 minutes)
	$(PYTEST) -m 'real and not long'

test-long: install ## the long matrices alone; PART=1/3 for a third of them
	$(BIN)/python -m pip install --quiet --group nccl --no-deps
	$(BIN)/python -m pip install --quiet --group hf --group trackers
	$(PYTEST) -m long -n $(JOBS) --dist worksteal --part $(PART)
	$(PYTEST) tests/launchers tests/strategies/test_accepted.py tests/runners/inrank/test_training_signals.py -m 'not long' -n $(JOBS) # what only these packages can read
	$(PYTEST) tests/faults -m long -n 2 --dist load --part $(PART)

test-faults: install ## jobs that are broken for real, and whether the diagnosis names it (8 minutes)
	$(PYTEST) tests/faults -m 'not long' -n 2 --dist load

test-nccl: install ## NCCL's own host code without a GPU; DISTUI_NCCL_SOURCES is the folder of its source tarballs
	$(PYTEST) tests/nccl_ranks -m long -n 2 --dist load --part $(PART)

test-cluster: install ## on a Slurm cluster in network namespaces, through SkyPilot (root on Debian or Ubuntu)
	$(BIN)/python -m tests.rigs.slurm prepare
	$(PYTEST) tests/cluster tests/presets/test_skypilot_task.py # whose schema is only there now

test-matrix: install ## other versions of torch, frameworks and Python (gigabytes, 2 minutes a row); ROWS='torch-2.9.1 python-*' for some
	$(PYTEST) tests/matrix --rows '$(ROWS)'

test-all: test test-real test-faults test-long test-nccl test-cluster ## all of these

check: lint types imports ## lint, format, types, imports

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install
	$(BIN)/mypy -p distui.presets -p distui.runners -p distui.tui
	@for one in $$(find tests -name conftest.py); do MYPYPATH=tests $(BIN)/mypy "$$one" || exit 1; done # one name each
	MYPYPATH=tests/tui $(BIN)/mypy tests --exclude '(^|/)conftest\.py$$' # whose `conftest` is imported by name

imports: install
	$(BIN)/lint-imports

house: install   ## size and shape of the code: modules, cycles, names; HOUSE=--details says where
	@$(BIN)/python -m tests.house $(HOUSE)

bench: install   ## the table of docs/benchmarks.md, side by side with bare torchrun; BENCH=--quick for a taste
	$(BIN)/python -m tests.bench $(BENCH)

pictures: install ## the screens and the recording in docs/pictures, from the real program
	$(BIN)/python -m pip install --quiet --group pictures
	$(BIN)/python -m tests.pictures
	$(BIN)/python -m tests.pictures.recording

clean:           ## remove what install and the tools made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
