# One command does all: every target below first sets up what it needs (.venv, Java), which is quick when it is there.
# ARGS="..." hands further arguments on: make test-fast ARGS="-k timers -x"

SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

ARGS ?=
BIN := .venv/bin
# Spark starts the Java that the set-up chose, which need not be the one on PATH.
RUN = JAVA_HOME="$$(cat .venv/java_home)"
# The directories with Python in them, as far as they are there.
CODE = $(foreach dir,src tests benchmarks examples,$(if $(wildcard $(dir)/*.py $(dir)/*/*.py),$(dir)))

.PHONY: help
help: ## Show this list
	@echo 'make TARGET [ARGS="..."]'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: ## Make .venv from requirements.lock, and see to a Java 17 or newer
	@scripts/setup.sh

.PHONY: demo
demo: setup ## Run the flights demo
	@$(RUN) $(BIN)/python examples/flights/demo.py $(ARGS)

.PHONY: demo-enrichment
demo-enrichment: setup ## Run the enrichment demo: lookups over HTTP at a service with bad days
	@$(RUN) $(BIN)/python examples/enrichment/demo.py $(ARGS)

.PHONY: demo-windows
demo-windows: setup ## Run the windows demo: rolling hours of delays, joined with the weather, with limits that change
	@$(RUN) $(BIN)/python examples/delays/demo.py $(ARGS)

.PHONY: demo-upgrade
demo-upgrade: setup ## Run the upgrade demo: the flights query is stopped, changed, rescaled and goes on
	@$(RUN) $(BIN)/python examples/flights/upgrade.py $(ARGS)

.PHONY: equality
equality: setup ## Run the flights every way there is, and compare with the oracle and with Spark's own windows (half an hour)
	@$(RUN) $(BIN)/python examples/flights/equality.py $(ARGS)

.PHONY: test
# The same examples and seeds in every run of `make test`; new ones where everything is asked for.
test: export HYPOTHESIS_PROFILE := $(or $(HYPOTHESIS_PROFILE),$(if $(filter test-all,$(MAKECMDGOALS)),dev,ci))
test: export SPARK_VERSIONS ?= 4.1
test: PROCESSES ?= 2
test: setup ## Everything: lint, types and all tests (what CI runs), in PROCESSES=2 (0: in one, as they come)
	@{ scripts/setup.sh spark $(SPARK_VERSIONS) && scripts/setup.sh worker; } & places=$$!; \
	  $(MAKE) lint types && wait $$places
	@$(RUN) $(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --durations 25 $(ARGS)

.PHONY: test-versions
test-versions: export SPARK_VERSIONS ?= 4.1 4.2
test-versions: export PILLARBOX_LONG = 1
test-versions: setup ## A first program on each version of Spark, and on workers without pillarbox (5 minutes)
	@scripts/setup.sh spark $(SPARK_VERSIONS)
	@scripts/setup.sh worker
	@$(RUN) $(BIN)/python -m pytest tests/versions $(ARGS)

.PHONY: test-fast
test-fast: setup ## Only the tests that need no Spark and kill no processes
	@$(BIN)/python -m pytest -m "not spark and not fault" $(ARGS)

.PHONY: test-kafka
test-kafka: export PILLARBOX_KAFKA = 1
test-kafka: setup ## Programs that read a real Kafka, which it brings from Maven Central (5 minutes)
	@$(RUN) $(BIN)/python -m pytest tests/kafka --durations 10 $(ARGS)

.PHONY: test-delta
test-delta: export PILLARBOX_DELTA = 1
test-delta: setup ## Programs between tables of Delta Lake, on Spark 4.2, which Delta is released for (5 minutes)
	@scripts/setup.sh spark 4.2
	@$(RUN) PYTHONPATH="$(CURDIR)/.venvs/spark-4.2" $(BIN)/python -m pytest tests/delta --durations 10 $(ARGS)

.PHONY: test-all
test-all: MINUTES ?= 30
test-all: export PILLARBOX_LONG = 1
test-all: test test-kafka test-delta simulate chaos ## Everything, and what takes longer: Kafka, Delta, 10,000 simulated schedules, half an hour of chaos

.PHONY: simulate
simulate: setup ## Simulate SEEDS=70 schedules of each program, or repeat one: PROGRAM=late-data SEED=17
	@$(BIN)/python -m tests.simulation $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(PROGRAM),--program $(PROGRAM)) $(ARGS)

.PHONY: chaos
chaos: setup ## Programs on Spark under faults drawn from SEED=7 (else the clock) and SEEDS=20 in all, or for MINUTES=10
	@$(RUN) $(BIN)/python -m tests.faults.chaos.seeds $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) \
	  $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

.PHONY: lint
lint: setup ## Check style and formatting
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)

.PHONY: format
format: setup ## Mend style and formatting where that can be done by machine
	@$(BIN)/ruff check --fix-only $(CODE)
	@$(BIN)/ruff format $(CODE)

.PHONY: types
types: setup ## Check types: of all code, of programs as users write them, and that all that is public has one
	@$(BIN)/python -m tests.support.docs build/programs
	@$(BIN)/python -m mypy $(CODE) build/programs & mypy=$$!; \
	  $(BIN)/basedpyright --pythonpath $(BIN)/python; others=$$?; wait $$mypy && exit $$others
	@PYTHONPATH=src $(BIN)/basedpyright --pythonpath $(BIN)/python --ignoreexternal --verifytypes pillarbox >build/types.txt || { cat build/types.txt; exit 1; }
	@grep 'completeness' build/types.txt

.PHONY: bench-mailbox
bench-mailbox: setup ## Measure the mailbox
	@$(RUN) $(BIN)/python benchmarks/bench_mailbox.py $(ARGS)

.PHONY: bench-keyed
bench-keyed: setup ## Measure keyed processing on Spark
	@$(RUN) $(BIN)/python benchmarks/bench_keyed.py $(ARGS)

.PHONY: bench-slots
bench-slots: setup ## Measure what task slots cost: the same work on 2, 8 and 16 of them (a quarter of an hour)
	@$(RUN) $(BIN)/python benchmarks/bench_slots.py $(ARGS)

.PHONY: bench-sessions
bench-sessions: setup ## Measure keyed sessions beside Spark's own APIs and PyFlink
	@$(RUN) $(BIN)/python benchmarks/bench_sessions.py $(ARGS)

.PHONY: bench-windows
bench-windows: setup ## Measure windows beside Spark's own, PyFlink, Pathway and Bytewax (up to an hour; less with --works, --peers)
	@$(RUN) $(BIN)/python benchmarks/bench_windows.py $(ARGS)

.PHONY: bench-join
bench-join: setup ## Measure the interval join beside Spark's own and PyFlink (half an hour; less with --formats, --peers)
	@$(RUN) $(BIN)/python benchmarks/bench_join.py $(ARGS)

.PHONY: bench-state
bench-state: setup ## Measure state and checkpoints
	@$(RUN) $(BIN)/python benchmarks/bench_state.py $(ARGS)

.PHONY: bench-memory
bench-memory: setup ## Measure the memory of Spark's Python workers
	@$(RUN) $(BIN)/python benchmarks/bench_memory.py $(ARGS)

.PHONY: bench-key-cost
bench-key-cost: setup ## Measure the memory of a key, and the bytes that are written of it, for some kinds of state
	@$(RUN) $(BIN)/python benchmarks/bench_key_cost.py $(ARGS)

.PHONY: bench-async
bench-async: setup ## Measure async I/O beside what is written by hand (10 minutes)
	@$(RUN) $(BIN)/python benchmarks/bench_async.py $(ARGS)

.PHONY: bench-rate
bench-rate: setup ## Measure how much of a rate limit a query uses, with two task slots and with eight
	@$(RUN) $(BIN)/python benchmarks/bench_rate.py $(ARGS)

.PHONY: bench-stateless
bench-stateless: setup ## Measure a stateless chain beside mapInArrow by hand
	@$(RUN) $(BIN)/python benchmarks/bench_stateless.py $(ARGS)

.PHONY: bench-epoch
bench-epoch: setup ## Measure what an epoch costs by itself, with and without data
	@$(RUN) $(BIN)/python benchmarks/bench_epoch.py $(ARGS)

.PHONY: bench-start
bench-start: setup ## Measure what a start costs, and count an epoch's requests to an object store
	@$(RUN) $(BIN)/python benchmarks/bench_start.py $(ARGS)

.PHONY: bench-latency
bench-latency: setup ## Measure the time of a record from source to sink
	@$(RUN) $(BIN)/python benchmarks/bench_latency.py $(ARGS)

.PHONY: bench-recovery
bench-recovery: setup ## Measure the restart of a query with much state
	@$(RUN) $(BIN)/python benchmarks/bench_recovery.py $(ARGS)

.PHONY: bench-operate
bench-operate: setup ## Measure reading, rescaling and saving the state of 5,000,000 keys (half an hour, less with --works)
	@$(RUN) $(BIN)/python benchmarks/bench_operate.py $(ARGS)

.PHONY: bench-timers
bench-timers: setup ## Measure timers beside asyncio's
	@$(RUN) $(BIN)/python benchmarks/bench_timers.py $(ARGS)

.PHONY: bench-growth
bench-growth: setup ## Measure what a row costs as rows and keys grow
	@$(RUN) $(BIN)/python benchmarks/bench_growth.py $(ARGS)

.PHONY: bench-against
bench-against: setup ## Measure this checkout against REVISION=... (a commit, branch or tag), in pairs (less with --works)
	@$(RUN) $(BIN)/python benchmarks/bench_against.py $(if $(REVISION),--revision $(REVISION)) $(ARGS)

.PHONY: bench-all
bench-all: setup ## Run all benchmarks, or those in ARGS, and write their figures into the pages (three hours)
	@$(BIN)/python benchmarks/report.py run $(ARGS)

.PHONY: bench-report
bench-report: setup ## Write the figures of docs/benchmarks into README and the pages of docs
	@$(BIN)/python benchmarks/report.py write

.PHONY: lock
# Exact versions for all Pythons, with hashes, and no word of where packages come from.
lock: LOCK = scripts/setup.sh uv pip compile --quiet --universal --python-version 3.10 --generate-hashes \
  --no-header --no-annotate --no-emit-index-url --no-emit-find-links $(ARGS)
lock: setup ## Write the lock files anew (newer versions: ARGS=--upgrade, or ARGS='--upgrade-package ruff')
	@$(LOCK) --group build -o requirements-build.lock
	@for version in 4.1 4.2; do \
	  echo "pyspark~=$$version.0" | $(LOCK) - --no-deps -o tests/versions/spark-$$version.lock || exit; \
	done
	@$(LOCK) pyproject.toml --extra cli --extra demo --group dev -o requirements.lock

.PHONY: clean
clean: ## Remove .venv and all that tools and Spark left behind
	rm -rf .venv .venvs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage htmlcov
	rm -rf spark-warehouse metastore_db derby.log artifacts src/*.egg-info
	find src tests benchmarks examples -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
