# Each target makes its own environment first: python3 (3.11 or later), make, and pip or uv are enough.
VENV := .venv
RUN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)

# Bytecode is written when a module is first imported, not by the installer: compiling all of PyTorch takes longer than
# `make train` computes. Without it, every process would compile again.
export PYTHONDONTWRITEBYTECODE :=
# uv does not read pip's variables: pass on those that choose a build of PyTorch, and let the best version win, as in pip.
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
export UV_INDEX ?= $(PIP_EXTRA_INDEX_URL)
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
export UV_INDEX_STRATEGY ?= unsafe-best-match
# `uv venv --seed` and `python3 -m venv` both install pip, for the packages that a user adds.
MAKE_VENV := $(if $(UV),$(UV) venv --quiet --seed --allow-existing --python "$$(command -v python3)",python3 -m venv)
INSTALL := $(if $(UV),$(UV) pip install --python $(RUN)/python,$(RUN)/python -m pip install --no-compile)
INSTALL += --quiet --constraint constraints.txt --editable

.PHONY: help train test test-slow lint bench gpu-check pictures notebooks docs release clean

help: ## print this list
	@echo "Targets (each one sets up $(VENV) first if it needs to):"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-17s %s\n", $$1, $$2 }'

train: $(VENV)/ready ## train a classifier of handwritten digits, in seconds
	$(RUN)/lockstep train

test: $(VENV)/tools ## run the tests, without the slow ones: 3 minutes
	$(RUN)/python -m pytest -m "not slow"

test-slow: $(VENV)/tools ## run the slow tests: faults, compiler, real data (LOCKSTEP_DATA)
	$(RUN)/python -m pytest -m slow

lint: $(VENV)/tools ## run ruff and mypy
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

# make bench ARGS="--rounds 1" for a first look; ARGS="--data DIR" where CIFAR-10 is
bench: $(VENV)/tools ## measure the start, and the cost of the loop and of a second process
	$(RUN)/python -m benchmarks.measure start $(ARGS)
	$(RUN)/python -m benchmarks.measure overhead $(ARGS)

# make gpu-check ARGS="--only hash" for one check; ARGS="--jobs 4" for four at a time
gpu-check: $(VENV)/ready ## run on GPUs what was only rehearsed without them, and write gpu-check.json
	$(RUN)/python -m benchmarks.gpu_check $(ARGS)

# make pictures ARGS="badges" for one of them; CIFAR-10 must be in LOCKSTEP_DATA or the cache
pictures: $(VENV)/tools ## draw docs/pictures again
	$(RUN)/python -m benchmarks.pictures $(ARGS)

notebooks: $(VENV)/tools ## execute the notebooks of examples/, and keep their outputs
	$(RUN)/python -m benchmarks.notebooks

# open site/index.html: no server and no network are needed
docs: $(VENV)/tools ## build the documentation into site/, and check every link
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build

# The last lines name each record in benchmarks/results/ and what changed since it was made.
release: docs ## build wheel and sdist, try README's commands with the wheel, list the records
	@test -z "$$(git status --porcelain)" || { git status --short; echo "Commit these files, or remove them."; exit 1; }
	$(RUN)/python -m benchmarks.release
	$(RUN)/python -m benchmarks.age

clean: ## remove the environment
	rm -rf $(VENV)

$(VENV)/ready: pyproject.toml constraints.txt
	@echo "Setting up $(CURDIR)/$(VENV): PyTorch and what Lockstep needs, about 1.2 GB on disk (with CUDA, several times that)."
	@echo "$(if $(UV),uv's,pip's) settings decide which build of PyTorch is installed. On Linux without a GPU, the CPU build is smaller:"
	@echo "  PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make train"
	$(MAKE_VENV) $(VENV)
	$(INSTALL) '.[export,serve]'
	touch $@
	@echo "$(CURDIR)/$(VENV) is ready: $$(du -sh $(VENV) | cut -f1) on disk. 'make clean' removes it."

$(VENV)/tools: $(VENV)/ready
	@echo "Adding the tools of tests and documentation to $(CURDIR)/$(VENV)."
	$(INSTALL) '.[dev]'
	touch $@
