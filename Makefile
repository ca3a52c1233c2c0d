# The two commands that matter: `make demo` and `make test`. Everything they need is set up by themselves.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test setup toolchain check unit trainer engine e2e lock bench clean

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

help: ## List the targets
	@grep -hE '^[a-z0-9]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: setup toolchain ## Run the whole chain in the sandbox and draw a scaling chart (KEEP=1 leaves it up)
	@$(VENV)/bin/eks-fsdp demo $(if $(KEEP),--keep)

test: setup toolchain check ## Run every check and every test
	@$(PY) -m pytest

setup: $(STAMP) ## Make the virtual environment

$(STAMP): requirements/all.txt pyproject.toml
	@scripts/preflight "$(PYTHON)" "$(VENV)"
	@scripts/setup-venv "$(PYTHON)" "$(VENV)"

toolchain: setup ## Find or build the binaries that the sandbox runs
	@bin=$$($(PY) -m eks_fsdp.sandbox.toolchain) && mkdir -p build && \
		for part in training-operator kueue; do ln -sfn "$$bin/../share/$$part" build/$$part; done

check: setup ## Lint, types, import contract
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@for program in examples/*/__main__.py; do $(VENV)/bin/mypy $$program; done
	@$(VENV)/bin/lint-imports

unit: setup ## Tests of pure functions and of components with mocks
	@$(PY) -m pytest tests/unit

trainer: setup toolchain ## Tests of the trainer on CPU
	@$(PY) -m pytest tests/trainer

engine: setup toolchain ## Tests on the real Pulumi engine and API server
	@$(PY) -m pytest tests/engine

e2e: setup toolchain ## The demo itself, as a test
	@$(PY) -m pytest tests/e2e

lock: setup ## Renew requirements/all.txt
	@scripts/lock

clean: ## Remove what the targets made in this folder
	@if [ -x $(VENV)/bin/eks-fsdp ]; then $(VENV)/bin/eks-fsdp sandbox down || true; fi
	rm -rf $(VENV) .out .sandbox .mypy_cache .ruff_cache .pytest_cache build
