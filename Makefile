# Every target makes the environment first if it is missing or older than its pins; a second call is instant.

PYTHON ?= python3
WORKERS ?= 3            # test processes, each with one thread; many tests wait for processes of their own
WHEELS ?= ../shared/wheels

WORKERS := $(strip $(WORKERS))
BIN := .venv/bin
READY := .venv/.ready
# pip shows its progress on a terminal and is quiet in a log
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(if $(MAKE_TERMOUT),,--quiet) -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help env demo test test-slow test-again browser-test screenshots campaign cluster-test lint format bench bench-scale bench-service bench-store bench-retrieval bench-sizing bench-sweeps results sbom secrets clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(READY)  ## make .venv with every version pinned by constraints.txt

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "nml-gcl needs Python 3.11 or newer, and '$(PYTHON)' is not one. Try: make env PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing into .venv; the first time takes a few minutes, most of it torch."
	@# the build backend is pinned too: install it here and build without isolation
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation -e '.[serve,train,dev]'
	@$(optional_wheels)
	@touch $@
	@echo "Ready: $$($(BIN)/python --version) in .venv, torch $$($(BIN)/python -c 'import torch; print(torch.__version__)')."

# Faster sampling where compiled wheels lie beside the project. Nothing needs them, so a wheel that does not fit
# this interpreter or this torch is left out and said so.
define optional_wheels
if [ -d "$(WHEELS)" ]; then \
	if $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-index --force-reinstall \
		--find-links "$(WHEELS)" torch-scatter torch-sparse >/dev/null 2>&1 \
		&& $(BIN)/python -c 'import torch_scatter, torch_sparse' >/dev/null 2>&1; \
	then echo "Added torch-scatter and torch-sparse from $(WHEELS)."; \
	else $(BIN)/python -m pip uninstall --quiet --yes torch-scatter torch-sparse >/dev/null 2>&1 || true; \
		echo "The wheels in $(WHEELS) do not fit this environment; going on without them."; \
	fi; \
fi
endef

demo: env  ## start the service, train on a small real graph through it, look at the result; KEEP=1: until Ctrl-C
	$(BIN)/nml demo $(if $(KEEP),--keep)

test: env  ## the fast tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow and not bench and not cluster and not browser"

test-slow: env  ## the tests that take longer (none selected is fine: pytest's exit code 5)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not campaign" || [ $$? -eq 5 ]

test-again: env  ## the tests that failed last time, one at a time and with nothing beside them
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -v --last-failed --last-failed-no-failures none --maxfail 1

browser-test: env  ## the console in a real browser (Chromium, which must be installed)
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
		{ echo "browser-test needs a browser, chromium or google-chrome, and there is none. Try: apt-get install chromium"; exit 1; }
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/browser

screenshots: env  ## pictures of the console for README and docs, in docs/console (needs Chromium)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.browser.screenshots

campaign: env  ## the service killed, starved and cut off, here and on a Ray cluster (9 minutes to an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m campaign

cluster-test: env  ## docker-compose.yml in namespaces: jobs, faults, replicas, an outsider, a restore (as root, 12 to 20 min)
	$(BIN)/python -m pytest -m cluster tests/cluster

lint: env  ## style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: env  ## fix style and format in place
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: env  ## the tiled losses against dense ones, and our sampler against torch-sparse
	$(BIN)/python tests/benchmarks/run.py
	$(BIN)/python tests/benchmarks/infonce.py
	$(BIN)/python tests/benchmarks/sampling.py

bench-scale: env  ## large graphs: a million nodes, exact contrast on Physics (NML_DATA), five million nodes on disk
	$(BIN)/python tests/benchmarks/scale.py growth
	$(BIN)/python tests/benchmarks/scale.py exact
	$(BIN)/python tests/benchmarks/scale.py exact --batch-size 2048
	$(BIN)/python tests/benchmarks/scale.py disk

bench-service: env  ## the service under load, beside a bare FastAPI route
	$(BIN)/python tests/benchmarks/service.py status
	$(BIN)/python tests/benchmarks/service.py training
	$(BIN)/python tests/benchmarks/service.py submit

bench-store: env  ## calls of a store with 100,000 jobs and 5,000 versions, beside one with 1,000 jobs
	$(BIN)/python tests/benchmarks/crowded_store.py

bench-retrieval: env  ## embeddings over HTTP and search, at a million rows
	$(BIN)/python -m tests.benchmarks.search
	$(BIN)/python tests/benchmarks/retrieval.py

bench-sizing: env  ## memory, disk and time of a job by nodes and dimension (the table in docs/operations.md)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.sizing

results: env  ## the paper's tables and what sampling costs (days on a CPU; needs the public data sets)
	$(BIN)/nml paper --datasets cora --datasets citeseer --seeds 5
	$(BIN)/nml paper --datasets photo --seeds 3
	$(BIN)/nml paper --datasets pubmed --datasets computers --datasets cs --datasets physics --seeds 1
	$(BIN)/python tests/benchmarks/scopes.py --runs runs/scopes

bench-sweeps: env  ## what sweeps find, save and cost (two hours on two cores; needs the public data sets)
	$(BIN)/python tests/benchmarks/sweeps.py search cora photo
	$(BIN)/python tests/benchmarks/sweeps.py trust cora --trials 24
	$(BIN)/python tests/benchmarks/sweeps.py trust photo citeseer --trials 20
	$(BIN)/python tests/benchmarks/sweeps.py asha citeseer --trials 20
	$(BIN)/python tests/benchmarks/sweeps.py asha photo --trials 20 --replay
	$(BIN)/python tests/benchmarks/sweeps.py asha cora --trials 24 --replay
	$(BIN)/python tests/benchmarks/sweeps.py figure photo
	$(BIN)/python tests/benchmarks/shared_data.py

sbom: env  ## what is installed, in sbom.json (CycloneDX), and the packages whose licence is not known
	$(BIN)/python docker/sbom.py > sbom.json
	@$(BIN)/python docker/sbom.py --licenses | grep ': not known' || true

secrets:  ## random passwords and tokens for docker compose, in .env
	@$(PYTHON) docker/secrets.py
	@# containers mount these; a checkout under a strict umask would close them to the users in there
	@chmod 0755 docker/postgres/init.sh docker/backup.sh docker/restore.sh

clean:  ## remove the environment and caches; runs stay
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
