# Every target makes the virtual environment that it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core-installed
DEV := $(VENV)/.dev-installed
WORKERS ?= 2

# Each worker of the tests has one core.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: demo test test-slow lint bench docs docs-serve notebooks results clean

demo: $(CORE)
	$(BIN)/pour demo

test: lint
	$(PYTEST) -m "not slow"

test-slow: $(DEV)
	$(PYTEST) -m slow tests

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/python scripts/lint_prose.py src/pour docs README.md CONTRIBUTING.md --limit 1 --quiet
	$(BIN)/python scripts/lint_pages.py README.md CONTRIBUTING.md docs

bench: $(DEV)
	$(BIN)/python benchmarks/forget.py
	$(BIN)/python benchmarks/cka.py
	$(BIN)/python benchmarks/training.py

docs: $(DEV)
	$(BIN)/python scripts/schemas.py
	$(BIN)/python scripts/diagrams.py
	$(BIN)/python scripts/pages.py
	$(BIN)/python scripts/link_terms.py --write
	$(BIN)/zensical build --strict --clean

docs-serve: docs
	$(BIN)/zensical serve

notebooks: $(DEV)
	$(BIN)/python scripts/notebooks.py

results: $(DEV)
	$(BIN)/python scripts/results.py
	$(BIN)/python scripts/plots.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(CORE): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(DEV): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@ $(CORE)
