# Each target sets up what it needs; a second run costs nothing.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: quickstart test lint audit sbom lock figures pictures notebooks prose slow mutants docs benchmarks benchmarks-check benchmarks-gpu reliability release clean

quickstart: .venv/core  ## train, cross-validate, predict and report on molecules that come with the package
	@$(BIN)/mnagt quickstart

test: lint  ## lint, types and tests; MNAGT_DATA=FOLDER adds those on real data
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

lint: .venv/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/codespell
	$(BIN)/python tools/prose.py

audit: .venv/dev  ## known vulnerabilities (needs the network) and secrets
	$(BIN)/python tools/audit.py

sbom: .venv/dev  ## dist/sbom.cdx.json (CycloneDX) and dist/licences.md: what mnagt and its extras install
	$(BIN)/python tools/sbom.py

lock: .venv/dev  ## requirements.lock: all packages with their hashes
	$(BIN)/python tools/lock.py

figures: .venv/dev  ## tables of README and docs, from results/
	$(BIN)/python tools/figures.py

pictures: .venv/dev  ## pictures of README and docs
	$(BIN)/python tools/pictures.py

notebooks: .venv/dev  ## run the notebooks and store what they print and draw
	OMP_NUM_THREADS=1 $(BIN)/python tools/run_notebooks.py

prose: .venv/dev  ## spelling, retired words, phrases that are not used, and long sentences in pages and notebooks
	$(BIN)/codespell
	$(BIN)/python tools/prose.py
	$(BIN)/python -m pytest -q tests/test_vocabulary.py

docs: .venv/dev  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python tools/check_site.py site
	@echo "open site/index.html"

benchmarks: .venv/dev  ## peers side by side; needs MNAGT_DATA with NCI1, COLLAB and ogbg_molhiv, and an idle machine
	@failed=0; for each in batching attention epoch models conv conv_accuracy reading imports smiles coverage serving serving_rates duplicates screening; do \
	  $(BIN)/python benchmarks/$$each.py --out results/$$(echo $$each | tr _ -)-cpu.json || failed=1; done; \
	$(BIN)/python benchmarks/page.py && exit $$failed

benchmarks-check: .venv/dev  ## what got slower than expected in benchmarks/expected.json, and by how much; minutes, on any machine
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/regressions.py

reliability: .venv/dev  ## kills, races, lost nodes, broken files and requests, an hour of soak: five hours or so; needs MNAGT_DATA with NCI1 and COLLAB, and jemalloc
	@failed=0; for each in crash ranks lost_node lost_replica out_of_core large_graphs threads fuzz bit_flips hostile allocators soak; do \
	  $(BIN)/python tests/reliability/$$each.py --out results/$$(echo $$each | tr _ -)-cpu.json || failed=1; done; \
	MNAGT_ALLOCATOR=system $(BIN)/python tests/reliability/soak.py --minutes 20 --out results/soak-glibc-cpu.json; exit $$failed

slow: .venv/dev  ## the tests that take minutes, and more examples of each property
	OMP_NUM_THREADS=1 MNAGT_EXAMPLES=200 $(BIN)/python -m pytest -m "slow or hypothesis"

release: .venv/dev  ## wheel and sdist into dist/, checked, then the quickstart from the wheel in a new virtual environment; ADDRESS=... completes links of README
	rm -rf dist build
	$(BIN)/python tools/release.py dist $(ADDRESS)
	$(PYTHON) -m venv build/venv
	build/venv/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl
	cd build && venv/bin/mnagt quickstart

mutants: .venv/dev  ## faults that no test notices, into mutants/survivors.txt; SAMPLE=200 for so many drawn at random
	$(BIN)/python tools/mutants.py --sample $(or $(SAMPLE),0)

benchmarks-gpu: .venv/dev  ## the same on a GPU; needs MNAGT_DATA with NCI1, COLLAB, ogbg_molhiv and pypi_ast
	@failed=0; \
	$(BIN)/python benchmarks/attention_gpu.py --sweep --out results/attention-gpu.json || failed=1; \
	$(BIN)/python benchmarks/epoch.py --device cuda --out results/epoch-gpu.json || failed=1; \
	$(BIN)/python benchmarks/conv.py --device cuda --out results/conv-gpu.json || failed=1; \
	$(BIN)/python benchmarks/conv_accuracy.py --device cuda --seeds 10 --epochs 20 --jobs 10 --out results/conv-accuracy-gpu.json || failed=1; \
	$(BIN)/python benchmarks/step.py --out results/step-gpu.json || failed=1; \
	$(BIN)/python benchmarks/molecules.py --out results/molecules-gpu.json || failed=1; \
	$(BIN)/python benchmarks/pointwise_kernels.py --out results/pointwise-kernels-gpu.json || failed=1; \
	$(BIN)/python benchmarks/page.py && exit $$failed

.venv/core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[molecules,serve]'
	touch $@

.venv/dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev]'
	touch .venv/core $@

$(BIN)/python:
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv site build dist
