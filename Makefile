# What a person types. Everything runs in $(VENV), which is made from PYTHON and pyproject.toml alone, whatever
# environment is active; a second run finds it there and starts at once.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
UV ?=

# The environment is ours: none of these may redirect its packages, or PySpark to another Spark's jars.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX SPARK_HOME
# Each command under test would compile the source again.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONNOUSERSITE = 1
export SPARK_LOCAL_IP ?= 127.0.0.1

BIN := $(VENV)/bin

.PHONY: help demo compare fork test check lint types format soak chaos bench bench-full peers docs release
.NOTPARALLEL:
.DEFAULT_GOAL := help

help:
	@echo 'make demo     exactly-once word count on this machine, killed and resumed (ARGS= for its options)'
	@echo 'make compare  the three semantics through the same faults, side by side (ARGS= for its options)'
	@echo 'make fork     a bug on Monday, found on Wednesday, exact on Thursday: a new version beside the old one'
	@echo 'make test     the tests that every change waits for, some ten minutes (ARGS= for pytest)'
	@echo 'make check    lint, format, types and make test: what must pass before a change lands'
	@echo 'make format   rewrite the code in the format that check wants'
	@echo 'make soak     all other tests: second servers and rounds, long crash tests, wrong implementations, guards'
	@echo 'make bench    txstream beside Structured Streaming and a plain loop, five minutes; make bench-full, longer'
	@echo 'make peers    install Flink and Pathway, each in an environment of its own: make bench-full then runs them too'
	@echo 'make chaos    kills and freezes all processes at random while it counts (ROUNDS=3, SEED=, ARGS=--json ...)'
	@echo 'make docs     the documentation site, in docs/_build/html'
	@echo 'make release  all tests; build wheel and sdist in dist/, check them, run the demo from the installed wheel'
	@echo 'PYTHON=python3.12 picks the interpreter (3.11 or newer); VENV=DIR another place than .venv;'
	@echo 'UV=uv installs with uv, which is three times as fast as pip'

demo: $(VENV)/.installed-core
	$(BIN)/txstream demo $(ARGS)

compare: $(VENV)/.installed-core
	$(BIN)/txstream compare $(ARGS)

fork: $(VENV)/.installed-core
	$(BIN)/python -m txstream.examples.bug_since_monday

test: $(VENV)/.installed-dev
	$(BIN)/python tools/lanes.py gate $(ARGS)

check: lint types test

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/python tools/check_types.py

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

soak: $(VENV)/.installed-dev
	$(BIN)/python tools/lanes.py long $(ARGS)
	$(BIN)/python tools/check_guards.py
	$(BIN)/python tools/other_pythons.py

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/beside_peers.py $(ARGS)

bench-full: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/beside_peers.py --full $(ARGS)

peers: $(VENV)-flink/.installed $(VENV)-pathway/.installed

chaos: $(VENV)/.installed-dev
	cd tests && $(abspath $(BIN))/python -m chaos --rounds $(or $(ROUNDS),3) $(addprefix --seed=,$(SEED)) $(ARGS)

docs: $(VENV)/.installed-docs
	$(BIN)/sphinx-build --fail-on-warning --keep-going --fresh-env --quiet docs docs/_build/html $(ARGS)
	@echo 'The site begins at docs/_build/html/index.html'

release: test soak
	$(BIN)/python tools/release.py $(ARGS)

# --- the environment ---------------------------------------------------------------------------------------
# The stamps say which extras are installed as pyproject.toml asks now; dev includes core and docs. The interpreter is a
# prerequisite too: when the system's Python went away or was replaced, everything is installed again.

# pip tells a lot, which nobody reads unless it fails. Where uv cannot install, pip may.
define pip
	@{ $(if $(UV),$(UV) pip install --python $(1)/bin/python $(2) ||) $(1)/bin/python -m pip install --disable-pip-version-check $(2); } >$(1)/pip.log 2>&1 || { cat $(1)/pip.log >&2; exit 1; }
endef

define install
	@echo 'Installing txstream into $(VENV) (the first time: a download of about 550 MB, most of it PySpark)'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --default-pip
	$(call pip,$(VENV),--editable '.$(1)')
endef

$(VENV)/.installed-core: pyproject.toml $(BIN)/python
	$(call install,)
	@touch $@

$(VENV)/.installed-docs: pyproject.toml $(BIN)/python
	$(call install,[docs])
	@touch $(VENV)/.installed-core $@

$(VENV)/.installed-dev: pyproject.toml $(BIN)/python
	$(call install,[dev])
	@touch $(VENV)/.installed-core $(VENV)/.installed-docs $@

# Peers that want another Arrow than PySpark: each needs an environment of its own. `benchmarks/peers/workload.py` asks for
# the rest.
$(VENV)-flink/.installed: PEER := apache-flink==2.3.0
$(VENV)-pathway/.installed: PEER := pathway==0.33.0
$(VENV)-%/.installed: Makefile | $(BIN)/python
	@echo 'Installing $(PEER) into $(@D) (1 to 2 GB)'
	$(PYTHON) -m venv $$(test ! -f $(@D)/pyvenv.cfg || echo --clear) $(@D)
	$(call pip,$(@D),'$(PEER)' confluent-kafka numpy psutil 'psycopg[binary]' sqlalchemy)
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  found=$$($(PYTHON) -c 'import sys; print("Python %d.%d" % sys.version_info[:2])' 2>/dev/null) \
	    || found='not to be found'; \
	  echo "txstream needs Python 3.11 or newer, but $(PYTHON) is $$found:" \
	    "install one and name it, as in \`make $(or $(MAKECMDGOALS),demo) PYTHON=python3.12\`." >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make environments: install its venv module" \
	    "(Debian and Ubuntu: apt-get install python3-venv)." >&2; \
	  exit 1; }
	@# An environment whose interpreter is gone is made anew; a folder that is none is never cleared.
	$(PYTHON) -m venv $$(test ! -f $(VENV)/pyvenv.cfg || echo --clear) $(VENV)
