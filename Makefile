# Each target sets up what it needs; a second run costs nothing.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: quickstart test lint docs benchmarks benchmarks-gpu clean

quickstart: .venv/core  ## train, cross-validate, predict and report on molecules that come with the package
	$(BIN)/mnagt quickstart

test: lint  ## lint, types and tests; MNAGT_DATA=FOLDER adds those on real data
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

lint: .venv/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: .venv/dev  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

benchmarks: .venv/dev  ## peers side by side; needs MNAGT_DATA with NCI1 and COLLAB, and an idle machine
	$(BIN)/python benchmarks/batching.py --out results/batching-cpu.json
	$(BIN)/python benchmarks/attention.py --out results/attention-cpu.json
	$(BIN)/python benchmarks/epoch.py --out results/epoch-cpu.json
	$(BIN)/python benchmarks/models.py --out results/models-cpu.json
	$(BIN)/python benchmarks/reading.py --out results/reading-cpu.json
	$(BIN)/python benchmarks/imports.py --out results/imports-cpu.json

benchmarks-gpu: .venv/dev  ## the same on a GPU; needs MNAGT_DATA with NCI1, COLLAB, ogbg_molhiv and pypi_ast
	$(BIN)/python benchmarks/attention_gpu.py --sweep --out results/attention-gpu.json
	$(BIN)/python benchmarks/epoch.py --device cuda --out results/epoch-gpu.json

.venv/core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --editable .
	touch $@

.venv/dev: .venv/core
	$(PIP) --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv site build dist
