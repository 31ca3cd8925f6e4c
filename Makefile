# On a machine with Python 3.11 and make each of these sets itself up: `make demo`, `make test`, `make docs`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export OPENBLAS_NUM_THREADS ?= 1
# bytecode is kept: each of the processes that tests start would compile the package anew
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test thorough check types bench docs docs-check wheel constraints clean

demo: $(STAMP)
	$(BIN)/cobilevel demo --out demo

test: check
	$(BIN)/python -m pytest -n 2 --dist worksteal

# what `make test` leaves out for its length
THOROUGH ?= thorough
thorough: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "$(THOROUGH)"

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyright

# what measures speed, with the packages that it is measured against
bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[bench]"
	$(BIN)/cobilevel bench --out bench

# the site, into site/: needs no network once its tools are installed
DOCS_STAMP := $(VENV)/.docs-installed
docs: $(DOCS_STAMP)
	$(BIN)/python -m sphinx -b html -j auto -q -W --keep-going -d docs/_build/doctrees docs site
	@echo "open site/index.html"

# links of the site, and every page in a browser, where there is one
docs-check: docs
	$(BIN)/python -m pytest -m "docs" tests/docs

$(DOCS_STAMP): $(STAMP) pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	touch $@

# wheel and sdist, and the README's example with the wheel in an empty environment
wheel: $(STAMP)
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build
	$(BIN)/python -m build --sdist --outdir dist .
	$(BIN)/python benchmarks/empty_environment.py dist/*.whl

# The versions everything is tested with; the file holds names and versions alone.
constraints: $(STAMP)
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --universal --python-version 3.11 --extra dev --extra bench --extra cluster --extra docs --no-header --no-annotate \
		--output-file constraints.txt pyproject.toml

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) demo bench site dist docs/_build docs/_pictures docs/reference jupyter_execute
