# Every target that runs something first makes sure .venv holds what requirements.lock pins.
# `make` alone lists the targets.

PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_ARGS ?=
DEMO_ARGS ?=
DIST_ARGS ?=
OFTEN_ARGS ?=
TORTURE_ARGS ?=
LOCK_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BROWSER := $(VENV)/.browser
PIP := $(BIN)/python -m pip --no-input --disable-pip-version-check --quiet
PYTEST := $(BIN)/python -m pytest

# The tests start thousands of Python processes: without bytecode each would compile all of Segue.
unexport PYTHONDONTWRITEBYTECODE

# Two workers more than there are cores: tests wait for processes and sockets half of their time,
# and one worker has the Spark session (tests/conftest.py).
WORKERS := $(shell expr $$(nproc 2>/dev/null || echo 2) + 2)

# Tests of pure code: rules, layouts, laws. They need no server, no process and no browser.
PURE_TESTS := tests/golden $(filter-out %redis_queue_model.py %redis_ring_model.py %stores_agree.py, \
	$(wildcard tests/property/test_*.py)) tests/unit/test_delivery_*.py tests/unit/test_errors.py \
	tests/unit/test_retention_rules.py tests/unit/test_task_schedule.py tests/unit/test_values.py

# The tests of the dashboard use the browser whose path this file holds, or SEGUE_BROWSER.
USED_BROWSER := $(if $(SEGUE_BROWSER),,$(BROWSER))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-often check lint format generate docs screenshots bench dist torture \
	lock clean FORCE

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s  %s\n", $$1, $$2 }' Makefile

demo: $(STAMP) ## Show the whole of Segue, Spark included (DEMO_ARGS=--short for a sixth of it)
	$(BIN)/python -m examples.demo $(DEMO_ARGS)

test: $(STAMP) $(USED_BROWSER) ## Run the tests on all cores (PYTEST_ARGS="-k lease" narrows them)
	@$(PYTEST) -n $(WORKERS) $(PYTEST_ARGS)

test-often: $(STAMP) $(USED_BROWSER) ## Run the tests three times idle and three times under load (OFTEN_ARGS)
	@$(BIN)/python -m tools.test_often $(OFTEN_ARGS)

check: lint ## Check style, types and the pure tests, in less than a minute
	@$(PYTEST) -q -n 2 --hypothesis-profile=check $(PURE_TESTS)

lint: $(STAMP) ## Check style, formatting and types; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## Format the code and apply the safe lint fixes
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

generate: $(STAMP) ## Write what is generated: segue.aio from the contract, the reference of the command line
	$(BIN)/python -m tools.generate_aio
	$(BIN)/python -m tools.generate_cli_reference

docs: $(STAMP) ## Build the documentation as a site, in build/docs, and check its links
	$(BIN)/python -m tools.build_docs build/docs

screenshots: $(STAMP) $(USED_BROWSER) ## Photograph the dashboard: docs/images, and all screens in build/screenshots
	$(BIN)/python -m tools.screenshots

bench: $(STAMP) ## Run the benchmarks (BENCH_ARGS are passed on)
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

# Built twice and compared; only what is committed is taken (DIST_ARGS=--dirty for a trial).
dist: $(STAMP) ## Build what is released into dist/, reproducibly, and check it
	$(BIN)/python -m tools.dist $(DIST_ARGS)

torture: $(STAMP) $(USED_BROWSER) ## Run everything at full length, part by part (TORTURE_ARGS="crash-queue spark")
	@$(BIN)/python -m tools.torture $(TORTURE_ARGS)

# Needs the virtual environment but not the installed lock: the lock may be what is broken.
lock: | $(BIN)/python ## Bring requirements.lock up to pyproject.toml (LOCK_ARGS=--upgrade for newer versions)
	$(PIP) install --upgrade uv
	$(BIN)/uv pip compile --quiet --system-certs --universal --generate-hashes --no-header \
		--all-extras --group dev --group bench $(LOCK_ARGS) pyproject.toml -o requirements.lock
	@! grep -nE '://|--(extra-)?index-url|--find-links' requirements.lock \
		|| { echo 'requirements.lock must name no host' >&2; exit 1; }

clean: ## Remove everything the other targets made, .venv included
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp holds the directory it was made in. A copied checkout brings along a .venv that still
# points at the old sources, and an interrupted install leaves half of one: both are made anew.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP) $(BIN)/python $(BROWSER): FORCE
endif

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'Segue needs Python 3.11 or newer: make PYTHON=/path/to/python3' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo 'This Python cannot make virtual environments. On Debian or Ubuntu:' \
			'apt install python3-venv' >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)

# uv is about twice as fast as pip; wherever it cannot run, pip does the same work.
# setuptools comes with the lock, so building the package itself downloads nothing more.
$(STAMP): pyproject.toml requirements.lock setup.py src/segue/log/_hot.c | $(BIN)/python
	@echo 'Installing requirements.lock into $(VENV)'
	@{ $(PIP) install uv && $(BIN)/uv pip install --quiet --system-certs --python $(BIN)/python \
			--require-hashes -r requirements.lock; } \
		|| { echo 'uv did not manage; installing with pip'; \
			$(PIP) install --require-hashes -r requirements.lock; }
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@printf '%s' '$(CURDIR)' > $@

# Found, or fetched once. It is looked for again when it is gone, and at each run while there is
# none: what can be tested without one is tested all the same (tests/browser/browser_support.py).
ifneq ($(shell test -x "$$(cat $(BROWSER) 2>/dev/null)" && echo found),found)
$(BROWSER): FORCE
endif

$(BROWSER): | $(STAMP)
	@$(BIN)/python -m tools.browser $(VENV)/browser > $@.new && mv $@.new $@ || rm -f $@.new $@
