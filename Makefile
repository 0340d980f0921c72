# The project's own commands. They need `git make python3-venv` and nothing else.
PYTHON ?= python3
JOBS ?= 2
BENCH ?=
BENCH_JSON ?= bench.json
VENV := .venv
WINE_TESTS ?= tests/platform/windows tests/orchestrator/windows tests/harness/windows tests/harness/test_words.py \
	tests/harness/test_stale.py tests/harness/test_probes.py \
	tests/harness/test_controls.py tests/session tests/nvxc tests/store tests/supervisor \
	tests/plan/windows tests/plan/test_command.py tests/plan/test_reparse_points.py \
	tests/images/test_checked.py tests/images/test_scratch.py tests/images/test_bindings.py \
	tests/images/test_artifacts.py tests/images/test_raw.py tests/images/test_names.py \
	tests/cli/test_usage.py tests/cli/test_naming.py tests/cli/test_reports.py tests/cli/test_ends.py \
	$(addprefix scenarios/test_,$(addsuffix .py, \
	cold_boot adapter checked_handoff image_guards restart_same_identity two_builds another_runtime hard_to_read \
	crash_points interrupted_launch field_reports real_guest lifecycle one_shot bad_input command_line managed_order exports network))
# System calls are killed and failed by strace, and pairs of crashes are many: both are swept on Linux, as is one text for
# every command and directory: a start takes its time here.
WINE_ONLY ?= not test_every_limit_holds and not (directory_that_is_none and (start or stop or deprovision)) and not (test_stress and (launch_find or start_one)) and not (test_crash_points and (pairs or calls or errors))
# Seconds that a test may take where a start takes ten times as long as on a quiet machine; one that takes longer ends
# its worker and the run.
WINE_LIMIT ?= 600
QEMU_TESTS ?= scenarios/test_real_guest.py \
	scenarios/test_cold_boot.py::test_an_image_boots_and_the_guest_finds_what_the_plan_says
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help venv scenarios test unit bench nightly soak sweep mutants report lint types docs goldens generated qemu wine clean
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml
	@echo "Making $(VENV) and installing the project into it (about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

venv: $(STAMP) ## Make the virtual environment and install the project into it

scenarios: $(STAMP) ## Run the scenarios on the bundled fake OpenVMM
	$(BIN)/python -m pytest scenarios -n $(JOBS)

test: lint types docs unit scenarios ## Everything: lint, types, documentation, unit tests, scenarios

unit: $(STAMP) ## The tests of the three packages
	$(BIN)/python -m pytest tests -n $(JOBS)

bench: $(STAMP) ## Measure against plain subprocess, polling, psutil and a PID file; BENCH="NAME ..." for some
	$(BIN)/python -m tests.bench --json $(BENCH_JSON) $(BENCH)

nightly: $(STAMP) ## A million random records in place of ten thousand, and every reader fuzzed for a minute
	NVX_RANDOM_RECORDS=1000000 $(BIN)/python -m pytest tests/fake/machine/test_nvxs.py
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[nightly]' || \
		echo 'atheris cannot be installed here: the readers are fuzzed at random'
	$(BIN)/python ci/fuzz.py --all 60

soak: $(STAMP) ## 2,000 launches and stops, after which nothing may be left
	$(BIN)/python ci/soak.py

sweep: $(STAMP) ## Every crash point there is: steps, events, system calls and pairs (minutes)
	$(BIN)/python -m pytest scenarios -m crash --sweep full -n $(JOBS)

report: $(STAMP) ## Run the scenarios and draw their page: build/report.html
	@mkdir -p build
	@$(BIN)/python -m pytest scenarios -n $(JOBS) --nvx-report build/report.json; found=$$?; \
	$(BIN)/nvx-harness report build/report.json -o build/report.html && exit $$found

mutants: $(STAMP) ## Every seeded fault, and the tests that must notice it (minutes)
	$(BIN)/nvx-harness mutants --jobs $(JOBS)

lint: $(STAMP) ## Style, formatting and import arrows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/zizmor --offline --no-progress --min-severity medium .github/workflows
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml

types: $(STAMP) ## mypy for Linux and Windows, and basedpyright
	$(BIN)/mypy --platform linux
	$(BIN)/mypy --platform win32
	$(BIN)/basedpyright

docs: $(STAMP) ## Build the documentation, strictly: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

generated: $(STAMP) ## Rewrite the generated pages and schemas
	$(BIN)/python ci/write_requirements.py
	$(BIN)/python ci/write_launch_page.py
	$(BIN)/python ci/write_schemas.py

goldens: $(STAMP) ## Rewrite the goldens; read the difference before you commit it
	$(BIN)/python -m pytest scenarios tests -n $(JOBS) --update-goldens

qemu: $(STAMP) ## Build a real Linux guest and run a selection of the scenarios on it, under QEMU
	$(BIN)/nvx-harness setup qemu
	$(BIN)/python -m pytest $(QEMU_TESTS) --backend qemu -n $(JOBS)

wine: ## Run the Windows half under Wine: CPython for Windows, built from nothing the first time
	PYTHON=$(PYTHON) ci/wine/lane test $(WINE_TESTS) -k '$(WINE_ONLY)' -n $(JOBS) \
		--timeout-scale 4 --timeout $(WINE_LIMIT) -o faulthandler_timeout=$(WINE_LIMIT) -q

clean: ## Remove what the other commands made
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
