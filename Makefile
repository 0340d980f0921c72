# The project's own commands. Nothing here needs more than `git make python3-venv`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help scenarios test lint types clean
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

venv: $(STAMP) ## Create the virtual environment and install the project into it

scenarios: $(STAMP) ## Run the scenarios on the bundled fake
	$(BIN)/python -m pytest scenarios -n 2

lint: $(STAMP) ## Style, formatting and import arrows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP) ## mypy (linux and win32) and basedpyright
	$(BIN)/mypy --platform linux
	$(BIN)/basedpyright

test: lint types ## All tests, lint and types included
	$(BIN)/python -m pytest tests -n 2

clean: ## Remove what the commands above made
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
