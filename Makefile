# Every command people need. `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TESTABLE := $(VENV)/.testable
CACHE := .cache
MODEL := $(CACHE)/arithmetic/model
DATA := $(CACHE)/arithmetic/train.jsonl
PACKAGES := $(wildcard src/psrl/*/)

export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1

.PHONY: help train up down test fast lint mutants chaos bench compatibility demo-model proto docs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

train: $(INSTALLED) $(DATA) demo-model ## set up everything and run the quick start
	@$(BIN)/psrl train examples/arithmetic/quickstart.yaml

up: $(INSTALLED) ## start the local stack in the background
	@$(BIN)/psrl up --instances 2

down: $(INSTALLED) ## stop the local stack
	@$(BIN)/psrl down

test: $(TESTABLE) lint ## set up and run everything that CI runs
	$(BIN)/pytest -n 2 -m "not nightly"

fast: $(TESTABLE) ## the tests that need no server
	$(BIN)/pytest tests/unit tests/property

lint: $(TESTABLE) ## format, lint, strict types, import rules
	$(BIN)/ruff format --check $(PACKAGES) tests examples
	$(BIN)/ruff check $(PACKAGES) tests examples
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(TESTABLE) $(DATA) demo-model ## overhead measured as ratios, each from one run
	$(BIN)/python -m tests.benchmarks

compatibility: $(TESTABLE) ## try every kind of model, data and reward, write docs/compatibility.md (half an hour)
	$(BIN)/python -m tests.compatibility

mutants: $(TESTABLE) ## change the code in one place at a time, show what no test notices (a night)
	infra/install.sh $(PYTHON) $(VENV) cpu,dev,mutation
	$(BIN)/python -m tests.mutants

chaos: $(TESTABLE) ## end every part of a run with SIGKILL 200 times, print the recovery table
	$(BIN)/python -m tests.chaos --total-steps 120

demo-model: $(INSTALLED) ## make the quick start's small language model (cached)
	@$(BIN)/python -m examples.arithmetic.demo_model --out $(MODEL) --size xs --digits 1 --seed 0

proto: $(TESTABLE) ## make the generated protobuf files anew
	schemas/proto/generate.sh

docs: $(TESTABLE) ## write the generated pages anew
	$(BIN)/psrl config docs --out docs/configuration.md
	$(BIN)/psrl config docs --import --out docs/coming-from-verl.md

clean: ## remove the environment, the caches and the local stack's data
	-test -x $(BIN)/psrl && $(BIN)/psrl down
	rm -rf $(VENV) $(CACHE) .psrl build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(DATA): | $(INSTALLED)
	@$(BIN)/python -m examples.arithmetic.generate --out $(dir $(DATA))

$(INSTALLED): pyproject.toml
	infra/install.sh $(PYTHON) $(VENV) cpu
	@touch $@

$(TESTABLE): $(INSTALLED) pyproject.toml
	infra/install.sh $(PYTHON) $(VENV) cpu,dev
	@touch $@
