# Each target makes its own environment first: python3 (3.11 or later), make and pip are enough.
VENV := .venv
RUN := $(VENV)/bin

.PHONY: train test lint bench clean

train: $(VENV)/ready
	$(RUN)/lockstep train

test: $(VENV)/ready
	$(RUN)/python -m pytest

lint: $(VENV)/ready
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

# make bench ARGS=--quick for a first look; ARGS="--data DIR" where CIFAR-10 is
bench: $(VENV)/ready
	$(RUN)/python -m benchmarks.suite $(ARGS)

$(VENV)/ready: pyproject.toml constraints.txt
	@echo "Setting up $(CURDIR)/$(VENV): PyTorch and the rest, about 1.4 GB on disk (with CUDA, several times that)."
	@echo "This takes a minute or more. pip's settings decide which build of PyTorch it installs."
	python3 -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
	@echo "$(CURDIR)/$(VENV) is ready: $$(du -sh $(VENV) | cut -f1) on disk. 'make clean' removes it."

clean:
	rm -rf $(VENV)
