PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
STAMP := .venv/.built
CONSTRAINTS := constraints/oldest.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check

# tox searches the path for interpreters, and pyenv puts there only those that are selected.
empty :=
export PATH := $(PATH):$(subst $(empty) ,:,$(wildcard $(HOME)/.pyenv/versions/*/bin))

.DEFAULT_GOAL := help
.PHONY: help env demo run test kill-test chaos bench lint format constraints latest clean

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

env: $(STAMP) ## Build the environment in .venv (every target does so by itself)

$(STAMP): pyproject.toml setup.cfg $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo not one)." >&2; \
		echo "Name another interpreter: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Building .venv (about half a minute, once) ..."; rm -rf .venv; $(PYTHON) -m venv .venv; }
	@$(PIP) install -qq -c $(CONSTRAINTS) -e '.[test]'
	@touch $@

demo: $(STAMP) ## Run the example for about a minute, kill two of its processes, print what the database says
	@$(BIN)/python example_project/manage.py demo $(ARGS)

run: $(STAMP) ## Run the example until Ctrl-C: site with admin, two schedulers, two workers
	@exec $(BIN)/python example_project/manage.py run $(ARGS)

test: $(STAMP) ## Run checks and tests, about 16 minutes (ARGS="--all": everything, "--changed", "--only sqlite", "--list")
	@exec $(BIN)/python -m tests $(ARGS)

kill-test: $(STAMP) ## Kill and replace the only worker, 20 times a trial, at default settings (long)
	@exec $(BIN)/python -m tests --kill-trials $(ARGS)

chaos: $(STAMP) ## Ten minutes of all faults on private servers, and what held (ARGS="--seed 7", "--campaigns 4")
	@exec $(BIN)/python -m tests.chaos $(ARGS)

bench: $(STAMP) ## Measure this package beside its peers, about 20 minutes (ARGS="--list", "--only run,lag", "--quick")
	@exec $(BIN)/python -m benchmarks.bench $(ARGS)

lint: $(STAMP) ## Only ruff, mypy --strict and the import contracts
	@exec $(BIN)/python -m tests --only checks

format: $(STAMP) ## Let ruff order the imports and lay out the code
	@$(BIN)/ruff check -q --fix-only .
	@$(BIN)/ruff format .

constraints: $(STAMP) ## Write constraints/*.txt anew: the newest versions within the supported ranges
	@for name in oldest newest alternatives; do \
		$(BIN)/tox run -q -e pins-$$name && { \
		echo "# Tested versions ($$name), written by \`make constraints\`."; \
		.tox/pins-$$name/bin/python -m pip freeze --all --exclude-editable --exclude pip; \
		} > constraints/$$name.new && mv constraints/$$name.new constraints/$$name.txt || exit 1; done

latest: ## Run the tests with the newest versions of all packages, without constraints (ARGS as for test)
	@rm -rf .venv-latest; $(PYTHON) -m venv .venv-latest
	@.venv-latest/bin/python -m pip --disable-pip-version-check install -qq -e '.[test]'
	@exec .venv-latest/bin/python -m tests $(ARGS)

clean: ## Remove the environment and all that was built or cached
	@rm -rf .venv .venv-latest .tox build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
