# Needs make and Python 3.11, 3.12 or 3.13; everything else is installed into $(VENV).

PYTHON ?= python3
VENV ?= .venv
DEMO ?= build/g2p
DIST ?= dist
DOCS ?= build/docs

export TF_CPP_MIN_LOG_LEVEL ?= 2

RUN := $(VENV)/bin/python
# Whole files to the workers: those of one file share models and compiled functions.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadfile
# What decides about the contents of an environment: change it and the next run installs again.
PACKAGING := setup.py pyproject.toml keras_attention/__init__.py

.DEFAULT_GOAL := help
.PHONY: help demo docs test test-slow test-backends test-serving test-web test-distributed test-release soak lint benchmark benchmark-peers benchmark-quick dist clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' Makefile | \
		while IFS='|' read -r target text; do printf '%-16s %s\n' "$$target" "$$text"; done

demo: $(VENV)/.has-examples ## Train, export and use a pronunciation model on real data
	$(RUN) examples/g2p.py --output $(DEMO)
	$(RUN) examples/pronounce.py --model $(DEMO)/saved_model attention alignment tensorflow

test: $(VENV)/.has-test ## Run the tests and the examples in the docstrings
	$(RUN) -m pytest $(PARALLEL)

test-slow: $(VENV)/.has-test $(VENV)/.has-notebook ## Run the tests that take more than a few seconds
	$(RUN) -m pytest -m slow $(PARALLEL)

test-backends: $(VENV)/.has-backends ## Run the tests on JAX and on PyTorch, move files between backends
	KERAS_BACKEND=jax $(RUN) -m pytest $(PARALLEL) tests
	KERAS_BACKEND=torch $(RUN) -m pytest $(PARALLEL) tests
	$(RUN) -m pytest tests/backends/check_files.py

test-serving: ## Start real servers, ask them, kill them (installs KServe and Ray in .venv-serving)
	$(MAKE) VENV=.venv-serving .venv-serving/.has-test-serving
	.venv-serving/bin/python -m pytest tests/serving/check_servers.py tests/serving/check_commands.py -s

test-web: ## Try the page of examples/serving/web in headless Chromium (needs npm and Chromium)
	$(MAKE) VENV=.venv-serving .venv-serving/.has-test-serving
	.venv-serving/bin/python -m pytest tests/web/check_page.py

docs: $(VENV)/.has-docs ## Build the documentation as a site in build/docs; warnings are errors
	$(RUN) -m sphinx -c docs/site --fail-on-warning --keep-going --quiet --fresh-env --write-all \
		-d build/doctrees . $(DOCS)
	@echo "Open $(DOCS)/index.html"

test-distributed: ## Train over two processes, kill them, go on (installs Ray and JAX in .venv-distributed)
	$(MAKE) VENV=.venv-distributed .venv-distributed/.has-test-distributed
	.venv-distributed/bin/python -m pytest tests/distributed/check_training.py \
		tests/distributed/check_scripts.py tests/distributed/check_bulk.py -s

test-release: $(VENV)/.has-dev ## Build the wheel, install it in an empty environment, use it
	rm -rf build/release
	$(RUN) -m build --outdir build/release/dist
	$(RUN) -m twine check --strict build/release/dist/*
	$(PYTHON) -m venv build/release/venv
	build/release/venv/bin/python -m pip install --disable-pip-version-check --quiet \
		build/release/dist/*.whl
	mkdir build/release/empty
	cp tests/release/use_wheel.py build/release/empty
	cd build/release/empty && PYTHONPATH= ../venv/bin/python use_wheel.py

soak: $(VENV)/.has-test ## Train and decode for ten minutes and look at the memory
	$(RUN) tests/soak.py --minutes 10

lint: $(VENV)/.has-dev ## Check style and formatting
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

benchmark: $(VENV)/.has-test ## Measure time and memory against Keras, write docs/performance.md and docs/decoding.md
	$(RUN) benchmarks/performance.py
	$(RUN) benchmarks/decoding.py

benchmark-peers: $(VENV)/.has-peers ## Install what else the benchmarks can compare with (gigabytes)

benchmark-quick: $(VENV)/.has-test ## The same on tiny shapes, to see that it works
	$(RUN) benchmarks/performance.py --quick --output build/benchmark
	$(RUN) benchmarks/decoding.py --quick --rounds 2 --output build/benchmark

dist: $(VENV)/.has-dev ## Build a source archive and a wheel
	$(RUN) -m build --outdir $(DIST)

clean: ## Remove environments, builds and caches
	rm -rf .venv .venv-serving .venv-distributed build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One environment serves all targets, so that TensorFlow is installed once. The package is linked
# into it, not copied: changes to the source take effect at once.
$(VENV)/.has-%: $(PACKAGING) | $(VENV)/.created
	$(RUN) -m pip install --disable-pip-version-check --quiet --editable '.[$*]'
	@touch $@

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
		echo "Python 3.11, 3.12 or 3.13 is needed, and '$(PYTHON)' is not that." >&2; \
		echo "Name another one like this: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@
