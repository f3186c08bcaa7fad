# One line each; CONTRIBUTING.md says when to use which. `make help` lists them.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.turnlog-stamp
RUN_STORE := build/run-store
CYCLES ?= 60
BENCH ?= all
ARGS ?=
# The tests start hundreds of processes, which must not compile every module again.
unexport PYTHONDONTWRITEBYTECODE

# The newest Python that is new enough, really starts and can make a virtual environment.
PYTHON ?= $(shell for name in python3.14 python3.13 python3.12 python3.11 python3; do \
	if "$$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	>/dev/null 2>&1; then echo "$$name"; break; fi; done)

.DEFAULT_GOAL := help
.PHONY: help setup run test lint crash flips bench clean

help: ## list these verbs
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1	\2/p' Makefile

setup: $(STAMP) ## create .venv with turnlog and its tools in it

$(STAMP): pyproject.toml eventlog/version.py
	@test -n "$(PYTHON)" || { echo "turnlog needs Python 3.11 or newer with its venv module:" \
	"install one (on Debian: apt install python3 python3-venv)," \
	"or name it: make setup PYTHON=/path/to/python3" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

run: $(STAMP) ## simulate voice calls into build/run-store, then look at what was stored
	@mkdir -p $(dir $(RUN_STORE)) && rm -rf $(RUN_STORE)
	$(BIN)/python -m turnlog simulate $(RUN_STORE) --calls 20 --hours 1 --seed 7
	$(BIN)/python -m turnlog stats $(RUN_STORE)
	$(BIN)/python -m turnlog replay $(RUN_STORE) call-0001 --limit 30

test: $(STAMP) ## run the tests, without the long loops
	$(BIN)/python -m pytest -q -m "not slow" --benchmark-disable $(ARGS)

lint: $(STAMP) ## check style, types and who imports whom
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports --no-cache

crash: $(STAMP) ## kill, cut power and break files, CYCLES times each (default 60)
	$(BIN)/python -m pytest -q -m "crash or slow" --crash-cycles=$(CYCLES) --benchmark-disable \
		-o faulthandler_timeout=0 $(ARGS)

flips: $(STAMP) ## flip every bit of a store in turn, for hours: ARGS="--every 9 --bits 1"
	$(BIN)/python -m tests.crash.flips $(ARGS)

bench: $(STAMP) ## measure against the targets: BENCH=append, ARGS=--quick
	$(BIN)/python -m bench $(BENCH) $(ARGS)

clean: ## remove everything that make created
	rm -rf $(VENV) build dist .benchmarks .hypothesis .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
