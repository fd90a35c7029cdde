# Every target works on a bare machine: it first makes .venv, as far as that is missing or outdated.

PYTHON ?= python3
# Four test processes by default, also on two cores, since some wait for browsers and for each other; more where there are
# more cores: make test WORKERS=8
WORKERS ?= 4
VENV := .venv
STAMP := $(VENV)/.installed
# As requires-python of pyproject.toml says.
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
# The program without the tools of development, which is all that a demo needs.
PROGRAM := $(VENV)/.program
# Test processes share the cores; more threads in each would only wait for one another. Compiled modules are kept even
# where the shell says otherwise: each of the processes that tests start would compile the program again.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest
# Tests of one file mostly run in one process, so that what they share is made once.
PARALLEL := PYTHONWARNDEFAULTENCODING=1 PYTHONWARNINGS=ignore::EncodingWarning $(PYTEST) -n $(WORKERS) --dist worksteal

# Strict: no broken link, no page without a place.
DOCS := $(VENV)/bin/python scripts/build_docs.py
SCHEMA := $(VENV)/bin/check-jsonschema -q --default-filetype yaml --builtin-schema

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all test-torch-free check dist format reference docs bench drills

help:
	@echo "make demo       make footage, train on it, interrupt, resume, generate, report"
	@echo "make test       all quick tests"
	@echo "make test-all   slow ones too"
	@echo "make test-torch-free    tests that need no torch, as on machines without it"
	@echo "make check      format, lint, types, layers, documentation"
	@echo "make docs       build the documentation as a site, and say how to read it"
	@echo "make dist       wheel and sdist in dist/, checked"
	@echo "make format     format, and mend what the linter can mend"
	@echo "make reference  write the generated pages of docs/reference/ again"
	@echo "make bench      run what lies in benchmarks/"
	@echo "make drills     run what lies in drills/"
	@echo "make install    only make .venv"

install: $(STAMP)

define make_venv
@command -v "$(PYTHON)" >/dev/null || { \
	echo "error: there is no $(PYTHON); install Python 3.11 to 3.13, or name one: make PYTHON=/path/to/python3"; \
	exit 1; }
@"$(PYTHON)" -c '$(SUPPORTED)' || { \
	echo "error: $$("$(PYTHON)" --version) is not Python 3.11 to 3.13; name one that is: make PYTHON=/path/to/python3.11"; \
	exit 1; }
@if [ ! -x $(VENV)/bin/pip ] || ! $(VENV)/bin/python -c '$(SUPPORTED)'; then \
	"$(PYTHON)" -m venv --clear $(VENV) || { \
		echo "error: no virtual environment could be made; on Debian and Ubuntu: apt install python3-venv"; \
		exit 1; }; \
fi
endef

# Stamps come last, so that an installation that broke off is done again.
$(STAMP): pyproject.toml constraints.txt
	$(make_venv)
	@echo "installing into $(VENV) (2 GB, some minutes the first time)"
	$(VENV)/bin/pip install -c constraints.txt -e '.[dev]'
	@touch $(PROGRAM) $@

$(PROGRAM): pyproject.toml constraints.txt
	$(make_venv)
	@echo "installing into $(VENV) what the demo needs (1.5 GB, a minute or two the first time)"
	$(VENV)/bin/pip install -c constraints.txt -e .
	@touch $@

demo: $(PROGRAM)
	$(VENV)/bin/reelworks demo

test: $(STAMP)
	$(PARALLEL)

test-all: $(STAMP)
	$(PARALLEL) -m ""

test-torch-free: $(STAMP)
	$(PARALLEL) --no-torch tests/unit tests/test_layers.py drills/tests

check: $(STAMP)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/python scripts/check_javascript.py
	$(VENV)/bin/python scripts/check_types.py
	$(PYTEST) -m "" tests/test_layers.py tests/test_portable.py tests/test_prose.py tests/test_release.py \
		tests/unit/recipe/test_reference_is_current.py
	$(SCHEMA) vendor.github-workflows .github/workflows/*.yml
	$(SCHEMA) vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/idea.yml
	$(SCHEMA) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA) vendor.citation-file-format CITATION.cff
	$(SCHEMA) vendor.compose-spec containers/compose.yaml
	$(VENV)/bin/hadolint containers/Dockerfile
	$(VENV)/bin/shellcheck containers/start.sh
	$(DOCS)

# A wheel and an sdist in dist/, as they would be uploaded.
dist: $(STAMP)
	rm -rf dist
	$(VENV)/bin/python -m build --outdir dist
	$(VENV)/bin/twine check --strict dist/*

format: $(STAMP)
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/python scripts/check_javascript.py --write

reference: $(STAMP)
	$(VENV)/bin/python scripts/generate_reference.py
	$(VENV)/bin/python scripts/models_page.py > docs/reference/models.md

docs: $(STAMP)
	$(DOCS)
	@echo "open site/index.html in a browser; while writing, $(VENV)/bin/zensical serve shows each change at once"

bench drills: $(STAMP)
	@set -e; for file in $(FOLDER)/[!_]*.py; do \
		echo "== $$file"; $(VENV)/bin/python -m "$(FOLDER).$$(basename "$$file" .py)"; \
	done

bench: FOLDER := benchmarks
drills: FOLDER := drills
