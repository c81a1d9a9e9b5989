# The everyday commands. Each sets up .venv by itself when it is missing or out of date.
#
#     make train ARGS="--name mine --steps 5000"      flags of `minibert pretrain`
#     make test ARGS="tests/ops -x"                     flags of pytest
#     make train PYTHON=python3.13                      the Python that .venv is made of (≥ 3.11)

VENV   := .venv
PYTHON ?=
ARGS   ?=

BIN     := $(VENV)/bin
READY   := $(VENV)/ready
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.14)
USABLE  := -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1

.PHONY: help train test lint gradcheck clean
.DEFAULT_GOAL := help

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

train: $(READY)  ## pre-train a tiny BERT into runs/tiny (an earlier run there is replaced)
	$(BIN)/python -m minibert pretrain --overwrite $(ARGS)

test: $(READY)  ## run the tests
	$(BIN)/python -m pytest $(ARGS)

lint: $(READY)  ## check style and layout
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check

gradcheck: $(READY)  ## compare every hand-written derivative with a numeric one
	$(BIN)/python -m minibert gradcheck $(ARGS)

clean:  ## remove .venv and all caches; runs/ and prepared/ stay
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -path ./.git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. The file `ready` is written last, so a broken-off installation is taken up again.
$(READY): pyproject.toml requirements.txt
	@if ! $(BIN)/python $(USABLE); then \
	    for python in $(PYTHONS); do if $$python $(USABLE); then found=$$python; break; fi; done; \
	    if [ -z "$$found" ]; then \
	        echo "minibert needs Python 3.11 or newer with venv (Debian, Ubuntu: apt install python3-venv);" \
	             "looked for: $(PYTHONS). Say which with: make PYTHON=/path/to/python" >&2; exit 1; \
	    fi; \
	    echo "Setting up $(VENV) with $$($$found --version), once ..."; \
	    $$found -m venv --clear $(VENV) || exit 1; \
	fi
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -r requirements.txt
	@touch $@
