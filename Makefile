# One command does all: every target below first sets up what it needs (.venv, Java), which is quick when it is there.
# ARGS="..." hands further arguments on: make test-fast ARGS="-k timers -x"

SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

# Hundreds of processes import the same modules: they are compiled once, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

ARGS ?=
# How many run the tests; with 0, they run in one as they come.
PROCESSES ?= 2
BIN := .venv/bin
# Spark starts the Java that the set-up chose, which need not be the one on PATH.
RUN = JAVA_HOME="$$(cat .venv/java_home)"
# The directories with Python in them, as far as they are there.
CODE = $(foreach dir,src tests benchmarks examples,$(if $(wildcard $(dir)/*.py $(dir)/*/*.py),$(dir)))

.PHONY: help
help: ## Show this list
	@echo 'make TARGET [ARGS="..."]'
	@awk -F ':.*## ' '/^[a-z0-9%-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: ## Make .venv from requirements.lock, and see to a Java 17 or newer
	@scripts/setup.sh

.PHONY: demo
demo: setup ## Run the flights demo
	@$(RUN) $(BIN)/python -m examples.flights.demo $(ARGS)

.PHONY: demo-enrichment
demo-enrichment: setup ## Run the enrichment demo: lookups over HTTP at a service with bad days
	@$(RUN) $(BIN)/python -m examples.enrichment.demo $(ARGS)

.PHONY: demo-agent
demo-agent: setup ## Run the agents demo: chats for a language model that bills, refuses and dies, killed in the middle
	@$(RUN) $(BIN)/python -m examples.agents.demo $(ARGS)

.PHONY: demo-windows
demo-windows: setup ## Run the windows demo: rolling hours of delays, joined with the weather, with limits that change
	@$(RUN) $(BIN)/python -m examples.delays.demo $(ARGS)

.PHONY: demo-upgrade
demo-upgrade: setup ## Run the upgrade demo: the flights query is stopped, changed, rescaled and goes on
	@$(RUN) $(BIN)/python -m examples.flights.upgrade $(ARGS)

.PHONY: equality
equality: setup ## Run the flights every way there is, and compare with the oracle and with Spark's own windows (half an hour)
	@$(RUN) $(BIN)/python -m examples.flights.equality $(ARGS)

.PHONY: test
# The same examples and seeds in every run of `make test`; new ones where everything is asked for.
test: export HYPOTHESIS_PROFILE := $(or $(HYPOTHESIS_PROFILE),$(if $(filter test-all,$(MAKECMDGOALS)),dev,ci))
test: setup ## Lint, types and a test of each feature (what CI runs), in PROCESSES=2 (0: in one, as they come)
	@$(RUN) PYTHONPATH=src $(BIN)/python -m tests.support.$(if $(PILLARBOX_LONG),class_archive,local_files) & classes=$$!; \
	  $(MAKE) lint types $(if $(PILLARBOX_LONG),,TYPED=src) && wait $$classes
	@$(RUN) $(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --durations 25 $(ARGS)

.PHONY: test-versions
test-versions: export SPARK_VERSIONS ?= 4.1 4.2
test-versions: export PILLARBOX_LONG = 1
test-versions: setup ## A first program on each version of Spark, and on workers without pillarbox (5 minutes)
	@scripts/setup.sh spark $(SPARK_VERSIONS)
	@scripts/setup.sh worker
	@$(RUN) $(BIN)/python -m pytest tests/versions $(ARGS)

.PHONY: test-fast
test-fast: setup ## Only the tests that need no Spark, kill no processes and take under a tenth of a second, in PROCESSES=2
	@$(BIN)/python -m pytest --fast -n $(PROCESSES) --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: test-connect
test-connect: export PILLARBOX_LONG = 1
test-connect: setup ## Programs in a client of Spark Connect, with a server of their own (2 minutes)
	@$(RUN) $(BIN)/python -m pytest tests/spark/session/test_connect.py tests/spark/session/test_connect_dashboard.py $(ARGS)

.PHONY: test-kafka
test-kafka: export PILLARBOX_KAFKA = 1
test-kafka: setup ## Programs that read a real Kafka, which it brings from Maven Central (5 minutes)
	@$(RUN) $(BIN)/python -m pytest tests/kafka --durations 10 $(ARGS)

.PHONY: test-delta
test-delta: export PILLARBOX_DELTA = 1
test-delta: setup ## Programs between tables of Delta Lake, on Spark 4.2, which Delta is released for (5 minutes)
	@scripts/setup.sh spark 4.2
	@$(RUN) PYTHONPATH="$(CURDIR)/.venvs/spark-4.2" $(BIN)/python -m pytest tests/delta --durations 10 $(ARGS)

.PHONY: test-cluster
test-cluster: export PILLARBOX_CLUSTER = 1
test-cluster: setup ## A program on a standalone cluster that loses a worker; workers have only the zip (5 minutes)
	@scripts/setup.sh worker
	@$(RUN) $(BIN)/python -m pytest tests/cluster --durations 10 $(ARGS)

.PHONY: test-see
test-see: export PILLARBOX_SEE = 1
test-see: export PYTHONPATH := .venvs/see:$(PYTHONPATH)
test-see: setup ## The dashboard in a real browser, and metrics in a real Prometheus, which it installs (5 minutes)
	@scripts/setup.sh see
	@$(RUN) $(BIN)/python -m pytest tests/see --durations 10 $(ARGS)

.PHONY: test-sick
test-sick: export PYTHONPATH := $(CURDIR)/src:$(CURDIR)
test-sick: setup ## Faulty queries, one for each rule of the doctor, and ten healthy ones: what page and doctor say (10 minutes)
	@$(RUN) $(BIN)/python -m tests.sick $(ARGS)

.PHONY: test-s3
test-s3: export PILLARBOX_S3 = 1
test-s3: setup ## A program whose files are all in an object store: a gateway that Go builds, and Hadoop's S3A (10 minutes)
	@scripts/setup.sh s3
	@$(RUN) $(BIN)/python -m pytest tests/s3 --durations 10 $(ARGS)

.PHONY: test-all
test-all: MINUTES ?= 30
test-all: export PILLARBOX_LONG = 1
test-all: test test-versions test-kafka test-delta test-cluster test-s3 test-see test-sick notebooks simulate chaos chaos-async chaos-homes ## Everything, and what takes longer: Kafka, Delta, a cluster, S3, a browser, notebooks, 10,000 simulated schedules, half an hour of chaos

.PHONY: simulate
simulate: setup ## Simulate SEEDS=70 schedules of each program, or repeat one: PROGRAM=late-data SEED=17
	@$(BIN)/python -m tests.simulation $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(PROGRAM),--program $(PROGRAM)) $(ARGS)

.PHONY: chaos
chaos: setup ## Programs on Spark under faults drawn from SEED=7 (else the clock) and SEEDS=20 in all, or for MINUTES=10
	@$(RUN) $(BIN)/python -m tests.faults.chaos.seeds $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) \
	  $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

.PHONY: chaos-async
chaos-async: setup ## The agents demo under KILLS=50 of homes, workers, drivers and the model, drawn from SEED=7 (else the clock) (15 minutes)
	@$(RUN) PYTHONPATH=src $(BIN)/python -m tests.faults.chaos.billing $(if $(SEED),--seed $(SEED)) --kills $(or $(KILLS),50) $(ARGS)

.PHONY: chaos-homes
chaos-homes: setup ## Homes without Spark under FAULTS=200 of their processes drawn from SEED=7 (else the clock), with MOST=8 homes a query (half an hour)
	@$(BIN)/python -m tests.homes.chaos $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS)) \
	  $(if $(MOST),--most $(MOST)) $(ARGS)

.PHONY: lint
lint: setup ## Check style and formatting, and count odd phrases in docs, docstrings and comments
	@$(BIN)/ruff check $(CODE) docs scripts
	@$(BIN)/ruff format --check $(CODE) docs scripts
	@$(BIN)/python -m scripts.english

.PHONY: format
format: setup ## Mend style and formatting where that can be done by machine
	@$(BIN)/ruff check --fix-only $(CODE) docs scripts
	@$(BIN)/ruff format $(CODE) docs scripts

.PHONY: types
types: TYPED ?= $(CODE)
types: setup ## Check types: of all code (or of TYPED=src), of programs as users write them, and that all that is public has one
	@$(BIN)/python -m tests.support.docs build/programs
	@$(BIN)/python -m mypy --num-workers $(PROCESSES) $(TYPED) build/programs & mypy=$$!; \
	  PYTHONPATH=src $(BIN)/basedpyright --pythonpath $(BIN)/python --ignoreexternal --verifytypes pillarbox \
	    >build/types.txt & public=$$!; \
	  $(BIN)/basedpyright --pythonpath $(BIN)/python; failed=$$?; \
	  if wait $$public; then grep completeness build/types.txt; else cat build/types.txt; failed=1; fi; \
	  wait $$mypy && exit $$failed

.PHONY: docs
docs: setup ## Make the site of docs/, with the API from the docstrings: build/site/index.html
	@scripts/setup.sh docs
	@PYTHONPATH=.venvs/docs $(BIN)/python -m sphinx -b html -a -c docs/site -W --keep-going -q -d build/doctrees $(ARGS) docs build/site
	@echo "build/site/index.html"

.PHONY: notebooks
notebooks: setup ## Run the notebooks of docs/notebooks, whose output `make docs` shows then (some minutes)
	@scripts/setup.sh docs
	@$(RUN) PYTHONPATH=.venvs/docs $(BIN)/python -m scripts.notebooks $(ARGS)

.PHONY: dist
dist: setup ## Build the wheel and the source distribution of the last commit: build/dist, the same bytes each time
	@$(BIN)/python -m scripts.dist $(ARGS)

bench-%: setup ## Run a benchmark, such as bench-keyed (bench-list names them), or try it: ARGS="--size small"
	@$(RUN) $(BIN)/python -m benchmarks $(if $(filter all,$*),run,$*) $(if $(REVISION),--revision $(REVISION)) $(ARGS)

bench-all: ## Run all benchmarks, or those in ARGS, and write their figures into the pages (three hours)
bench-report: ## Write the figures of docs/benchmarks into README and the pages of docs

.PHONY: zip
zip: setup ## Make build/pillarbox.zip, which spark-submit ships to workers: --py-files
	@$(BIN)/python scripts/zip_package.py

.PHONY: lock
# Exact versions for all Pythons, with hashes, and no word of where packages come from.
lock: LOCK = scripts/setup.sh uv pip compile --quiet --universal --python-version 3.10 --generate-hashes \
  --no-header --no-annotate --no-emit-index-url --no-emit-find-links $(ARGS)
lock: setup ## Write the lock files anew (newer versions: ARGS=--upgrade, or ARGS='--upgrade-package ruff')
	@$(LOCK) --group build -o requirements-build.lock
	@$(LOCK) --group docs -o requirements-docs.lock
	@$(LOCK) --group see -o requirements-see.lock
	@for version in 4.1 4.2; do \
	  echo "pyspark~=$$version.0" | $(LOCK) - --no-deps -o tests/versions/spark-$$version.lock || exit; \
	done
	@$(LOCK) pyproject.toml --extra all --extra demo --group dev -o requirements.lock

.PHONY: changelog
changelog: setup ## Make the section of VERSION=0.2.0 in CHANGELOG.md from changes/ and what is unreleased
	@$(BIN)/python scripts/changelog.py $(or $(VERSION),$(error Say which version: make changelog VERSION=0.2.0))

.PHONY: clean
clean: ## Remove .venv and all that tools and Spark left behind
	rm -rf .venv .venvs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage htmlcov
	rm -rf spark-warehouse metastore_db derby.log artifacts src/*.egg-info
	find src tests benchmarks examples -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
