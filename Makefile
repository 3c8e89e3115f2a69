# jaxformer: `make demo` and `make test` need nothing but Python 3.11 and make.
#   EXTRAS=dev,hf,oracle   adds extras of pyproject.toml to .venv (never removes any)
#   PYTHON=python3.11      makes .venv
#   PYTEST_ARGS='tests/nn -x'  or  '-m slow': passed to pytest in place of the default below

PYTHON ?= python3.11
EXTRAS ?=
PYTEST_ARGS ?= -n logical --maxprocesses=4 --dist=loadfile

comma := ,
empty :=
space := $(empty) $(empty)
# A set of extras names its stamp: sorted, joined by +, `base` for none.
stamp = .venv/installed/$(subst $(space),+,$(or $(sort $(1)),base))
chosen := $(subst $(comma),$(space),$(EXTRAS))
for_use := $(call stamp,$(chosen))
for_test := $(call stamp,$(chosen) dev)

.PHONY: help install demo test check tables clean
.NOTPARALLEL:

help:
	@echo "make demo      train the default config, evaluate it, draw and print the results"
	@echo "make test      formatting, lint, types, tests      (EXTRAS=hf,oracle tests more)"
	@echo "make check     the same without the tests"
	@echo "make tables    measures textbook tables again, into docs/reproductions.md"
	@echo "make install   only make .venv                     (EXTRAS=cuda|tpu|dev,...)"
	@echo "make clean     remove .venv, caches and runs/demo"

install: $(for_use)

demo: $(for_use)
	.venv/bin/python train.py --config=configs/agreement.py --workdir=runs/demo
	.venv/bin/python eval.py --workdir=runs/demo

tables: $(for_use)
	.venv/bin/python -m scripts.reproductions

test: check
	.venv/bin/python -m pytest $(PYTEST_ARGS)

check: $(for_test)
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/basedpyright

clean:
	rm -rf .venv runs/demo build *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# .venv/incomplete stands while something is being installed: if it is still there, the last
# install died or failed half-way, and .venv is made anew.
.venv/installed/%: pyproject.toml constraints.txt
	@if [ -e .venv/incomplete ] || [ ! -x .venv/bin/python ]; then \
	  command -v $(PYTHON) >/dev/null || { \
	    echo "make: no $(PYTHON) here; name a Python 3.11: make PYTHON=/path/to/python3.11" >&2; \
	    exit 1; }; \
	  echo "Making .venv with $(PYTHON)"; \
	  rm -rf .venv && mkdir .venv && touch .venv/incomplete && $(PYTHON) -m venv .venv; \
	fi
	@echo "Installing jaxformer ($(subst +, ,$*)) into .venv: a minute or so"
	@mkdir -p $(@D) && touch .venv/incomplete
	@.venv/bin/python -m pip install -qq --no-compile --disable-pip-version-check \
	  -c constraints.txt -e '.$(if $(filter-out base,$*),[$(subst +,$(comma),$*)])'
	@rm .venv/incomplete
	@.venv/bin/python -c "import sys, importlib.metadata as m; \
	  known = m.metadata('jaxformer').get_all('Provides-Extra'); \
	  unknown = set(sys.argv[1:]) - {'base', *known}; \
	  unknown and sys.exit(f'make: no extra {unknown} in pyproject.toml, only {known}')" \
	  $(subst +, ,$*)
	@touch $@
