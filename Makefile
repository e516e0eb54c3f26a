# `make demo` shows what ncclean does; `make test` runs the tests. Both install into .venv first.

PYTHON ?= python3
# PyTorch's builds: `make demo TORCH=cpu` takes 1.5 GB in place of 6; as uv's --torch-backend.
TORCH ?=
BIN := .venv/bin
STAMP := .venv/.installed
# The tested versions need Python 3.11; an older one takes what pyproject.toml allows.
CONSTRAINTS := $(shell $(PYTHON) -c 'import sys; print("-c constraints.txt" * (sys.version_info >= (3, 11)))')

.PHONY: help install demo test quick test-slow test-all test-install check bench docs docs-figures clean

help:
	@echo "make install   create .venv and install ncclean with its tools"
	@echo "make demo      render a noisy corpus, find the noise, repair a model"
	@echo "make test      run the tests but the slow ones"
	@echo "make quick     run the tests of what changed, for a minute"
	@echo "make test-all  run the slow ones too"
	@echo "make check     ruff, mypy, spelling, prose, workflows and Dockerfile"
	@echo "make test-install  the wheel in empty environments of four Pythons, by uv"
	@echo "make bench     run the benchmarks"
	@echo "make docs      build the documentation into site/"
	@echo "make docs-figures  write the tables of the pages from docs/records"
	@echo "make clean     remove what the other targets made, except .venv"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
ifeq ($(TORCH),)
	$(BIN)/python -m pip install $(CONSTRAINTS) -e ".[test,docs]"
else
	$(BIN)/python -m pip install uv
	$(BIN)/uv pip install --torch-backend $(TORCH) $(CONSTRAINTS) -e ".[test,docs]"
endif
	@# mypy follows no editable install: it finds the two packages through links of their names.
	@mkdir -p .venv/types
	@ln -sfn ../../cli .venv/types/ncclean_cli
	@ln -sfn ../../pipelines .venv/types/ncclean_pipelines
	@touch $@

demo: install
	$(BIN)/ncclean demo --out demo_run

# In the order of the files: sorted by their number of tests, those of Ray would come last, one
# process busy and the others idle.
test: install
	$(BIN)/python -m pytest -q -m "not slow" -n auto --dist loadfile --no-loadscope-reorder

quick: install
	$(BIN)/python tests/quick.py

test-slow: install
	$(BIN)/python -m pytest -q -m slow -n 2 --dist loadfile --no-loadscope-reorder

test-all: test test-slow

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/proselint check --config docs/proselint.json README.md CHANGELOG.md docs/*.md
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@# Of these two, pip installs no binary everywhere.
	@if command -v actionlint; then actionlint; else echo "no actionlint: workflows not linted"; fi
	@if command -v hadolint; then hadolint Dockerfile; else echo "no hadolint: Dockerfile not linted"; fi

test-install:
	python3 tests/install.py 3.10 3.11 3.12 3.13 $(if $(TORCH),--torch $(TORCH))
	python3 tests/install.py 3.10 --lowest $(if $(TORCH),--torch $(TORCH))

bench: install
	$(BIN)/python tests/benchmarks/run.py --json benchmarks.json

docs: install
	$(BIN)/mkdocs build --strict

docs-figures: install
	$(BIN)/python docs/figures.py

clean:
	rm -rf build dist site demo_run *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path "./.venv/*" -prune -exec rm -rf {} +
