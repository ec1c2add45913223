PYTHON ?= python3
VENV ?= .venv
RUNS ?= runs
WORKERS ?= 2
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint types tests starter browser clean

demo: $(VENV)/starter.done  ## run the starter suite with the starter model and print its table
	$(BIN)/omnirecall run starter --model starter --out $(RUNS)

test: lint types tests  ## lint, types and tests

lint: $(VENV)/test.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/test.done
	$(BIN)/mypy

tests: $(VENV)/test.done browser
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile

starter: $(VENV)/test.done  ## rebuild the starter suite's data from the packages it comes from
	$(BIN)/python scripts/build_starter.py --work build/starter

browser:  ## the browser that the page is tested in; installed where it is absent and one may
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; } || \
	  echo "chromium and chromedriver are absent and cannot be installed here; the tests of the page will say so"

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
