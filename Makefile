# Every target does its own set-up in .venv. Needed on the machine: Python 3.11 or later with pip, git and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
PEER := .peer
PEER_STAMP := $(PEER)/.ready
MCP2 := .mcp2
MCP2_STAMP := $(MCP2)/.ready
NODE_SDK := .node-sdk
NODE_SDK_STAMP := $(NODE_SDK)/.ready
# The TypeScript SDK is asked for where Node and npm are; elsewhere its test says so and is skipped.
NPM := $(shell command -v node >/dev/null 2>&1 && command -v npm 2>/dev/null)
DOCS := .docs
DOCS_STAMP := $(DOCS)/.ready
TRL := .trl
TRL_STAMP := $(TRL)/.ready
TRL_OLDEST := .trl-oldest
TRL_OLDEST_STAMP := $(TRL_OLDEST)/.ready
SB3 := .sb3
SB3_STAMP := $(SB3)/.ready
TORCH ?= torch==2.13.0
PYTEST_ARGS ?=
ENVS := echo_env gymnasium_env probe_env sudoku_env
# The tests mostly wait: several at a time on one core. WORKERS=0 runs them one after another.
WORKERS ?= 4
# Real sockets on a machine that may stall: what fails is tried once more, and listed as RERUN, for it wants mending.
RERUNS ?= 1
AGAIN := --reruns $(RERUNS) --reruns-delay 1 --rerun-show-tracebacks
SOAK_CYCLES ?= 10000
SOAK_MINUTES ?= 30
SOAK_SEED ?=
BENCH_ROUNDS ?= 8
DIST ?= dist

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.PHONY: help venv peer mcp2 node-sdk trl sb3 demo dist docs docs-serve test test-trl test-sb3 faults soak bench-policy screenshots lint format clean

help:
	@echo "make demo    play Sudoku over the network, cut every connection, see what happens"
	@echo "make test    lint, then all tests (PYTEST_ARGS='-k name' for some of them)"
	@echo "make faults  only the fault suite; its report by guarantee goes to build/faults.md and .json"
	@echo "make soak    half an hour of random faults (SOAK_MINUTES, SOAK_CYCLES, SOAK_SEED); its report goes to build/soak.md and .json"
	@echo "make bench-policy  the speed of the policy link against the usual way; its report goes to build/bench-policy.md, .json and .png"
	@echo "make screenshots  the pictures of the web page in docs/images (needs Chromium)"
	@echo "make lint    ruff, mypy and the import rules"
	@echo "make format  let ruff mend what it can"
	@echo "make venv    only the set-up"
	@echo "make peer    only the set-up of $(PEER): the real openenv 0.10.0, which the tests talk to"
	@echo "make mcp2    only the set-up of $(MCP2): version 2 of the MCP SDK, a client that the tests connect"
	@echo "make node-sdk  only the set-up of $(NODE_SDK): the TypeScript SDK of MCP, another one (needs Node and npm)"
	@echo "make test-trl  train for real with TRL on the CPU: the newest and the oldest supported version"
	@echo "make test-sb3  train CartPole over the network with stable-baselines3, as it is"
	@echo "make sb3     only the set-up of $(SB3), which shares the torch of $(TRL)"
	@echo "make trl     only the set-up of $(TRL) and $(TRL_OLDEST), with torch: a gigabyte"
	@echo "make dist    build the wheel and the source distribution, into $(DIST)"
	@echo "make docs    build the documentation site into build/docs; fails on any warning and any broken link"
	@echo "make docs-serve  show the site at http://localhost:8001, and follow changes"
	@echo "make clean   remove $(VENV), $(PEER), $(MCP2), $(NODE_SDK), $(DOCS), $(TRL), $(TRL_OLDEST), $(SB3) and all caches"

venv: $(STAMP)

# Some systems ship Python without ensurepip: then the pip outside fills the environment.
$(STAMP): pyproject.toml $(ENVS:%=envs/%/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "openenv needs Python 3.11 or later; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Setting up $(VENV): a minute on first use."
	@rm -f $@
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then \
		$(PYTHON) -m venv $(VENV) && pip="$(BIN)/python -m pip"; \
	else \
		$(PYTHON) -m venv --without-pip $(VENV) && pip="$(PYTHON) -m pip --python $(BIN)/python"; \
	fi && \
	$$pip install --quiet -e '.[dev]' && \
	$$pip install --quiet --no-deps $(ENVS:%=-e envs/%)
	@touch $@

peer: $(PEER_STAMP)

# The package that this one must get along with, in an environment of its own: both are called openenv.
$(PEER_STAMP): tests/interop/peer-requirements.txt | $(STAMP)
	@echo "Setting up $(PEER) with the real openenv 0.10.0: 60 packages, half a minute on first use."
	@rm -rf $(PEER)
	@$(PYTHON) -m venv --without-pip $(PEER)
	@$(PYTHON) -m pip --python $(PEER)/bin/python install --quiet --no-deps --no-compile -r $<
	@$(PEER)/bin/python -W ignore -c 'import openenv.core.env_server.http_server, openenv.core.harness, openenv.core.mcp_client; \
		from importlib.metadata import version; print("Ready: openenv", version("openenv"), "in $(PEER)")'
	@touch $@

mcp2: $(MCP2_STAMP)

# Version 2 of the SDK cannot stand beside version 1, which fastmcp needs.
$(MCP2_STAMP): tests/interop/mcp2-requirements.txt | $(STAMP)
	@echo "Setting up $(MCP2) with version 2 of the MCP SDK."
	@rm -rf $(MCP2)
	@$(PYTHON) -m venv --without-pip $(MCP2)
	@$(PYTHON) -m pip --python $(MCP2)/bin/python install --quiet --no-deps --no-compile -r $<
	@$(MCP2)/bin/python -c 'import mcp.client.streamable_http; from importlib.metadata import version; \
		print("Ready: mcp", version("mcp"), "in $(MCP2)")'
	@touch $@

node-sdk: $(NODE_SDK_STAMP)

# Scripts of packages are not run. Modules are found beside the program that imports them, so that is copied.
$(NODE_SDK_STAMP): $(wildcard tests/interop/node/*)
	@test -n "$(NPM)" || { echo "the TypeScript SDK needs Node 20 or later, with npm" >&2; exit 1; }
	@echo "Setting up $(NODE_SDK) with the TypeScript SDK of MCP."
	@rm -rf $(NODE_SDK) && mkdir $(NODE_SDK)
	@cp tests/interop/node/* $(NODE_SDK)
	@cd $(NODE_SDK) && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
	@touch $@

trl: $(TRL_STAMP) $(TRL_OLDEST_STAMP)

# TRL imports this package, so it is there in editable form. torch first: its CPU build does for the tests, and where
# that comes from is for the machine to say (TORCH=torch==2.13.0+cpu, or its pip configuration).
$(TRL_STAMP): tests/trl/requirements.txt pyproject.toml envs/textarena_env/pyproject.toml
	@echo "Setting up $(TRL) with torch and TRL: some minutes on first use."
	@rm -rf $(TRL)
	@$(PYTHON) -m venv --without-pip $(TRL)
	@$(PYTHON) -m pip --python $(TRL)/bin/python install --quiet --no-compile $(TORCH)
	@$(PYTHON) -m pip --python $(TRL)/bin/python install --quiet --no-compile -r $< -e .
	@$(PYTHON) -m pip --python $(TRL)/bin/python install --quiet --no-deps -e envs/sudoku_env -e envs/textarena_env
	@$(TRL)/bin/python -c 'from importlib.metadata import version; print("Ready: TRL", version("trl"), "in $(TRL)")'
	@touch $@

# Everything is that of .trl, but for TRL itself.
$(TRL_OLDEST_STAMP): tests/trl/oldest.txt $(TRL_STAMP)
	@rm -rf $(TRL_OLDEST)
	@$(PYTHON) -m venv --without-pip $(TRL_OLDEST)
	@$(PYTHON) -m pip --python $(TRL_OLDEST)/bin/python install --quiet --no-deps --no-compile -r $<
	@$(TRL_OLDEST)/bin/python -c 'import pathlib, sysconfig; here = pathlib.Path(sysconfig.get_path("purelib")); \
		there = pathlib.Path("$(TRL)").resolve() / here.relative_to(here.parents[2]); \
		(here / "newest.pth").write_text(f"import site; site.addsitedir({str(there)!r})\n")'
	@$(TRL_OLDEST)/bin/python -c 'from importlib.metadata import version; print("Ready: TRL", version("trl"), "in $(TRL_OLDEST)")'
	@touch $@

sb3: $(SB3_STAMP)

# Everything is that of .trl, and stable-baselines3 with what it needs beside torch.
$(SB3_STAMP): tests/sb3/requirements.txt $(TRL_STAMP)
	@rm -rf $(SB3)
	@$(PYTHON) -m venv --without-pip $(SB3)
	@$(PYTHON) -m pip --python $(SB3)/bin/python install --quiet --no-deps --no-compile -r $< -e envs/gymnasium_env
	@$(SB3)/bin/python -c 'import pathlib, sysconfig; here = pathlib.Path(sysconfig.get_path("purelib")); \
		there = pathlib.Path("$(TRL)").resolve() / here.relative_to(here.parents[2]); \
		(here / "torch.pth").write_text(f"import site; site.addsitedir({str(there)!r})\n")'
	@$(SB3)/bin/python -c 'from importlib.metadata import version; \
		print("Ready: stable-baselines3", version("stable-baselines3"), "in $(SB3)")'
	@touch $@

demo: $(STAMP)
	@$(BIN)/openenv demo

# The wheel is built from the source distribution, so what that lacks is missed here.
dist: $(STAMP)
	@rm -f $(DIST)/openenv-*
	@$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir $(DIST) .
	@ls $(DIST)/openenv-*

# The site's tools read the sources and import nothing of them, so the package itself is not installed with them.
$(DOCS_STAMP): pyproject.toml
	@echo "Setting up $(DOCS): some seconds on first use."
	@rm -rf $(DOCS)
	@$(PYTHON) -m venv --without-pip $(DOCS)
	@$(PYTHON) -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $(DOCS)/requirements.txt
	@$(PYTHON) -m pip --python $(DOCS)/bin/python install --quiet --no-compile -r $(DOCS)/requirements.txt
	@touch $@

docs: $(DOCS_STAMP)
	@$(DOCS)/bin/python scripts/docs_site.py build

docs-serve: $(DOCS_STAMP)
	@$(DOCS)/bin/python scripts/docs_site.py serve

test: lint $(PEER_STAMP) $(MCP2_STAMP) $(if $(NPM),$(NODE_SDK_STAMP))
	OPENENV_PEER_REQUIRED=1 OPENENV_MCP2_REQUIRED=1 $(if $(NPM),OPENENV_NODE_REQUIRED=1) $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m 'not alone' $(AGAIN) $(PYTEST_ARGS)
	$(BIN)/python -m pytest -q -m alone $(AGAIN) $(PYTEST_ARGS) || test $$? = 5  # 5: there is none among those asked for

# TextArena brings twenty packages: its environment is tested where there are many already.
test-trl: $(TRL_STAMP) $(TRL_OLDEST_STAMP) $(PEER_STAMP)
	OPENENV_PEER_REQUIRED=1 $(TRL)/bin/python -m pytest -q -c tests/trl/pytest.ini --rootdir=. \
		--confcutdir=envs/textarena_env envs/textarena_env/tests $(PYTEST_ARGS)
	cd tests/trl && ../../$(TRL)/bin/python -m pytest -q -c pytest.ini --confcutdir=. $(PYTEST_ARGS)
	cd tests/trl && ../../$(TRL_OLDEST)/bin/python -m pytest -q -c pytest.ini --confcutdir=. -m 'not newest' $(PYTEST_ARGS)

test-sb3: $(SB3_STAMP)
	cd tests/sb3 && ../../$(SB3)/bin/python -m pytest -q -s -c pytest.ini --confcutdir=. $(PYTEST_ARGS)

faults: $(STAMP) $(PEER_STAMP)
	OPENENV_PEER_REQUIRED=1 OPENENV_FAULT_REPORT=build/faults $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal tests/faults $(PYTEST_ARGS)

# Part of no check: long, and with the times that a user has who sets none. SOAK_SEED repeats the faults of a run.
soak: $(STAMP)
	@PYTHONPATH=tests $(BIN)/python -m soak.run --cycles $(SOAK_CYCLES) --minutes $(SOAK_MINUTES) \
		--report build/soak $(if $(SOAK_SEED),--seed $(SOAK_SEED))

# Two minutes on two quiet cores. BENCH_ROUNDS: more of them for steadier numbers.
bench-policy: $(STAMP)
	@PYTHONPATH=tests $(BIN)/python -m bench.run --rounds $(BENCH_ROUNDS) --report build/bench-policy

# Looked at before they are committed: a browser draws a page a little differently on every machine.
screenshots: $(STAMP)
	@$(BIN)/python scripts/screenshots.py

lint: $(STAMP)
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(PEER) $(MCP2) $(NODE_SDK) $(DOCS) $(TRL) $(TRL_OLDEST) $(SB3) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .cache
	find src tests envs -name __pycache__ -type d -prune -exec rm -rf {} +
