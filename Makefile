# Newcomers need make run and make test. make help lists all targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The stamp is named after what is installed, because a checkout or a rebase changes the times of files.
READY := $(VENV)/.installed-$(shell sed '/^\[tool/q' pyproject.toml | cat - constraints.txt | cksum | cut -d' ' -f1)
UP ?=
SEED ?=
# Most tests wait for processes, sockets and time-outs; the long ones need whole cores.
JOBS ?= 3
LONG_JOBS ?= 2
PYTEST := $(BIN)/pytest

export GANTRY_TEST_SEED = $(SEED)
# Tests start services hundreds of times. Without compiled modules, each start compiles them again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install run console test test-long lint fmt test-unit test-integration test-conformance test-browser screenshots test-fault test-powercut test-abuse fuzz bench bench-rocketmq migrate migration wheel-smoke clean

help: ## Print this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

install: $(READY) ## Make .venv with everything that Gantry and its tests need.

$(READY):
	@$(PYTHON) -c 'import sys; sys.exit("Gantry needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11 install") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

console: $(READY) ## Build the browser console (needs Node.js, or gets it as a wheel).
	$(BIN)/python -m tools.console build

run: $(READY) ## Install, then start everything on this machine (UP="--brokers 1" for options of gantry up).
	$(BIN)/python -m tools.console --optional build
	$(BIN)/gantry up $(UP)

test: lint ## Run lint and all tests but the long ones (JOBS=n processes); the last lines list the tests left out, with reasons.
	$(BIN)/python -m tools.console build test
	$(PYTEST) -q --durations=15 -n $(JOBS) --dist loadfile --no-loadscope-reorder

test-long: $(READY) ## The long tests: Spark, clients on a JVM, loads of faults for minutes (ADR 0027).
	$(PYTEST) -q --durations=15 -n $(LONG_JOBS) --dist loadfile --no-loadscope-reorder -m long

lint: $(READY) ## Formatting, ruff, mypy, import contracts, house lint; tsc and eslint for the console.
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --cache-dir .cache/import_linter
	$(BIN)/python -m tools.tidy
	$(BIN)/python -m tools.console lint

fmt: $(READY) ## Format the sources (`npm run fmt` in web-console formats the console).
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix --quiet .

test-unit: $(READY) ## Tests of single parts: no socket, no disk, virtual time.
	$(PYTEST) -q -n $(JOBS) --dist loadfile --no-loadscope-reorder tests/unit

test-integration: $(READY) ## Real processes on this machine.
	$(PYTEST) -q tests/integration

test-conformance: $(READY) ## Golden bytes, foreign clients, semantics.
	$(PYTEST) -q tests/conformance

test-browser: $(READY) ## The console and report pages in a real Chromium.
	$(BIN)/python -m tools.console build
	$(PYTEST) -q tests/browser

screenshots: $(READY) ## Write pictures of every page of the console, in both languages and themes (DIR=folder).
	$(BIN)/python -m tools.console build
	$(BIN)/python -m tests.browser.screenshots $(or $(DIR),.cache/screenshots)

test-fault: $(READY) ## Crashes, kill -9, full disks (SEED=n repeats a run).
	$(PYTEST) -q tests/fault

test-powercut: $(READY) ## Cut the power of the disk at random moments (root, loop devices, xfsprogs).
	GANTRY_POWERCUT_COPIES=100 $(PYTEST) -q -rP -m powercut tests/fault

test-abuse: $(READY) ## Attack a gateway for 20 minutes and measure the other clients.
	GANTRY_ABUSE_SECONDS=1200 $(PYTEST) -q -rP tests/fault/test_abuse.py

fuzz: $(READY) ## Send random and damaged bytes, for longer than in make test (SEED=n).
	$(BIN)/python -m tests.fuzz.fuzz_remoting

# The goals behind `bench` are names of benchmarks, which make must neither look for nor build.
ifeq ($(firstword $(MAKECMDGOALS)),bench)
BENCHMARKS := $(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS))
.PHONY: $(BENCHMARKS)
$(BENCHMARKS): ; @:
endif

bench: $(READY) ## Measure; each line is a ratio to a baseline of the same run (make bench scale: many queues; make bench forecasts: 15 minutes; make bench console: the browser console).
	$(BIN)/python -m benchmarks $(BENCHMARKS)

bench-rocketmq: $(READY) ## The same load against Apache RocketMQ's broker (java, mvn).
	$(BIN)/python -m benchmarks rocketmq

migrate: $(READY) ## Bring GANTRY_DATABASE_URL's schema up to date.
	$(BIN)/gantry migrate

migration: $(READY) ## Write a new migration: make migration m="what it does".
	$(BIN)/alembic revision --autogenerate -m "$(m)"

wheel-smoke: $(READY) ## Build the wheel, install it in an empty venv, start all, send and read one message.
	$(BIN)/python -m tools.wheel_smoke

clean: ## Remove what was built (not your data in .gantry).
	rm -rf $(VENV) web-console/node_modules services/gateway/console .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
