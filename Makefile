# Two commands do everything on a machine with Python 3.11 and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test thorough check types bench constraints clean

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

# The versions everything is tested with; the file holds names and versions alone.
constraints: $(STAMP)
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --universal --python-version 3.11 --extra dev --extra bench --extra cluster --no-header --no-annotate \
		--output-file constraints.txt pyproject.toml

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) demo bench
