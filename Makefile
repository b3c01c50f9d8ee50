# Each target makes its own environment first: python3 (3.11 or later), make and pip are enough.
VENV := .venv
RUN := $(VENV)/bin

.PHONY: help train test test-slow lint bench gpu-check pictures docs clean

help: ## print this list
	@echo "Targets (each one sets up $(VENV) first if it needs to):"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-17s %s\n", $$1, $$2 }'

train: $(VENV)/ready ## train a classifier of handwritten digits, in seconds
	$(RUN)/lockstep train

# The bytecode of the tests is kept, even where the environment says otherwise: to make it takes each process seconds.
test: $(VENV)/ready ## run the tests, without the slow ones: 2 minutes
	PYTHONDONTWRITEBYTECODE= $(RUN)/python -m pytest -m "not slow"

test-slow: $(VENV)/ready ## run the slow tests: faults, compiler, real data (LOCKSTEP_DATA)
	$(RUN)/python -m pytest -m slow

lint: $(VENV)/ready ## run ruff and mypy
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

# make bench ARGS="--rounds 1" for a first look; ARGS="--data DIR" where CIFAR-10 is
bench: $(VENV)/ready ## measure the start, and the cost of the loop and of a second process
	$(RUN)/python -m benchmarks.measure start $(ARGS)
	$(RUN)/python -m benchmarks.measure overhead $(ARGS)

# make gpu-check ARGS="--only hash" for one check; ARGS="--jobs 4" for four at a time
gpu-check: $(VENV)/ready ## run on GPUs what was only rehearsed without them, and write gpu-check.json
	$(RUN)/python -m benchmarks.gpu_check $(ARGS)

pictures: $(VENV)/ready ## draw docs/pictures again
	$(RUN)/python -m benchmarks.pictures

# open site/index.html: no server and no network are needed
docs: $(VENV)/ready ## build the documentation into site/, and check every link
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build

clean: ## remove the environment
	rm -rf $(VENV)

$(VENV)/ready: pyproject.toml constraints.txt
	@echo "Setting up $(CURDIR)/$(VENV): PyTorch and the rest, about 1.8 GB on disk (with CUDA, several times that)."
	@echo "This takes a minute or more. pip's settings decide which build of PyTorch it installs."
	python3 -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
	@echo "$(CURDIR)/$(VENV) is ready: $$(du -sh $(VENV) | cut -f1) on disk. 'make clean' removes it."
