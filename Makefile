# `make demo` shows what ncclean does; `make test` runs the tests. Both install into .venv first.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# The tested versions need Python 3.11; an older one takes what pyproject.toml allows.
CONSTRAINTS := $(shell $(PYTHON) -c 'import sys; print("-c constraints.txt" * (sys.version_info >= (3, 11)))')

.PHONY: help install demo test test-slow test-all check bench docs docs-figures clean

help:
	@echo "make install   create .venv and install ncclean with its tools"
	@echo "make demo      render a noisy corpus, find the noise, repair a model"
	@echo "make test      run the tests but the slow ones"
	@echo "make test-all  run the slow ones too"
	@echo "make check     ruff, mypy, spelling and prose"
	@echo "make bench     run the benchmarks"
	@echo "make docs      build the documentation into site/"
	@echo "make docs-figures  write the tables of the pages from docs/records"
	@echo "make clean     remove what the other targets made, except .venv"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(CONSTRAINTS) -e ".[test,docs]"
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
	$(BIN)/python -m pytest -q -m "not slow" -n auto --maxprocesses 4 --dist loadfile \
	  --no-loadscope-reorder

test-slow: install
	$(BIN)/python -m pytest -q -m slow -n 2 --dist loadfile --no-loadscope-reorder

test-all: test test-slow

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/proselint check --config docs/proselint.json README.md CHANGELOG.md docs/*.md

bench: install
	$(BIN)/python tests/benchmarks/run.py

docs: install
	$(BIN)/mkdocs build --strict

docs-figures: install
	$(BIN)/python docs/figures.py

clean:
	rm -rf build dist site demo_run *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path "./.venv/*" -prune -exec rm -rf {} +
