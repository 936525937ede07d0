# Everything one does here: `make help`. Needs Python >= 3.11, git and make; the rest goes into .venv.
SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := $(or $(LONGDECODE_VENV),.venv)
BIN := $(VENV)/bin
# Named by the lock's checksum: a changed lock is installed, an unchanged one is not looked at again.
STAMP := $(VENV)/.installed-$(shell cksum < requirements.lock | tr ' ' '-')
# A newer Python than 3.13 is the last choice: some pinned packages have no wheels for it yet and would be compiled.
PYTHON ?= $(shell for end in 14 99; do for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, $$end))" 2>/dev/null && echo $$p && exit; done; done)
PIP = $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check
CORES ?= 8
PROFILE ?= demo
WORKERS ?= 2
REV ?= HEAD
BENCH ?= config/h200.yaml
ENGINE ?= docker
DOCS := mkdocs-material==9.8.2 'mkdocstrings[python]==1.0.8'
TORCH ?= $(shell grep '^torch==' requirements.lock)

export PYTHONPATH := $(CURDIR)/src
# Jobs and tests start Python hundreds of times: what one start compiled is kept for the next, whatever the machine says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup report test lint format types pytest docs train bench-compare schema lock clean verify manifest settle plan rehearse faults cluster-test container

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  Variables: PYTHON=python3.12  CORES=8  PROFILE=demo  WORKERS=2"

setup: $(STAMP) ## Create .venv with the pinned packages

report: $(STAMP) ## Run the demo profile to its report: reports/demo/index.html (PROFILE=h200 for another)
	@$(BIN)/python -m longdecode run $(PROFILE) --cores $(CORES)

test: lint types pytest ## Format, lint, types and tests, as CI does

lint: $(STAMP) ## Formatting and lint of Python and of the workflow
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/snakefmt --check Snakefile workflow

format: $(STAMP) ## Format and mend what can be mended
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/snakefmt Snakefile workflow

types: $(STAMP) ## Check types
	MYPYPATH=.ci $(BIN)/mypy -p longdecode -m write_lock

pytest: $(STAMP) ## Tests alone; ARGS="-k quest" chooses
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

# The reader of docstrings knows no packages without __init__.py, so it gets a copy that has them.
docs: $(STAMP) ## Build the documentation as a site: build/docs/index.html
	@$(PIP) $(DOCS)
	@rm -rf build/api && mkdir -p build/api/longdecode && cp -r src/longdecode/__init__.py engine methods kernels build/api/longdecode
	@find build/api/longdecode -type d -exec touch {}/__init__.py \;
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -q

train: $(STAMP) ## Train the miniature anew (needs a GPU; resumes when killed)
	$(BIN)/python -m snakemake --cores $(CORES) miniature_train

# In turn A B B A, so that neither tree has the cooler or the busier half.
bench-compare: $(STAMP) ## Time REV=<rev> and this tree in turn, a table each (BENCH=config/tiny.yaml on a CPU; ARGS choose cells)
	@git worktree remove --force build/other 2> /dev/null || true
	git worktree add --detach build/other $(REV)
	for tree in build/other . . build/other; do \
		module=analysis.speed; [ -f $$tree/analysis/speed.py ] || module=evals.throughput.measure; \
		rm -rf build/bench/$$tree/*.parquet build/bench/$$tree/journal; echo "$$tree:"; \
		PYTHONPATH=$$tree/src $(BIN)/python -m longdecode.$$module --config $(BENCH) --output build/bench/$$tree $(ARGS) || exit 1; \
	done
	git worktree remove --force build/other

verify: $(STAMP) ## Check that results and pages of PROFILE are as they were written
	@$(BIN)/python -m longdecode verify $(PROFILE)

manifest: $(STAMP) ## Write the manifests of PROFILE anew, for evidence that was put together by hand
	$(BIN)/python -m longdecode.evals.manifest $(wildcard results/$(PROFILE) reports/$(PROFILE))

settle: ## Date PROFILE's committed results in the order of their making (git keeps no times), so that a run adds to them
	@find models/smollm2-long models/miniature/weights $(wildcard models/draft_heads) -type f -exec touch -c -t 200001010000 {} +
	@for rooms in "identification tuning heads" gate "records speed retrospection generation"; do \
		sleep 1; for room in $$rooms; do find results/$(PROFILE)/$$room -type f -exec touch -c {} + 2>/dev/null || true; done; done

plan: $(STAMP) ## Jobs, GPU hours, disk and downloads of the sweep in config/PROFILE (PROFILE=papers)
	@$(BIN)/python -m longdecode plan $(PROFILE)

rehearse: $(STAMP) ## The papers' runs on a CPU with tiny random checkpoints (ARGS="retro --place build/rehearsal" for one, kept; --cells: all tasks, and that numbers in print pair)
	PYTHONPATH=$(PYTHONPATH):$(CURDIR)/tests $(BIN)/python tests/papers/rehearsal.py --cores $(WORKERS) $(ARGS)

faults: $(STAMP) ## The fault campaign: 23 minutes on two processors (ARGS="--size 0.1 --minutes 3" for less)
	$(BIN)/python tests/faults/campaign.py $(ARGS)

cluster-test: $(STAMP) ## The tiny run on a one-node Slurm of this machine (root, slurm-wlm, munge)
	$(BIN)/python -m pytest -m cluster tests/cluster

container: ## Build the container image longdecode from the lock (ENGINE=podman or buildah; ARGS="--build-arg BASE=...")
	$(ENGINE) build $(ARGS) -t longdecode --build-arg REVISION=$$(git rev-parse HEAD) \
		--build-arg DIRTY=$$(git diff --quiet HEAD && echo 0 || echo 1) -f container/Dockerfile .

schema: $(STAMP) ## Write workflow/schemas/config.schema.yaml from the configuration's types
	$(BIN)/python -m longdecode.evals.run_config > workflow/schemas/config.schema.yaml

lock: ## Resolve pyproject.toml anew into requirements.lock and environment.yml (TORCH=torch==X for another torch)
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install "$(TORCH)" '.[dev,cluster]'
	build/lock/bin/pip freeze --all | $(PYTHON) .ci/write_lock.py

clean: ## Remove the demo's and CI's results and reports, caches and Snakemake's notes (keeps .venv and results/h200)
	rm -rf results/demo results/tiny reports/demo reports/tiny build .snakemake .pytest_cache .mypy_cache .ruff_cache

# Torch by itself: a machine that keeps a wheel of its own for it (CPU only, or another CUDA) then keeps using it. Beside it
# the rest in two halves, each taken as listed: the lock is closed. The last pip checks that, and adds what this
# build of torch alone needs.
# Python compiles what it imports: compiling all that is installed takes a minute, half of the set-up. What every process
# imports is compiled beside pip's check, as the first jobs and tests would each do it at once.
$(STAMP): requirements.lock
	@test -n "$(PYTHON)" || { echo "LongDecode needs Python >= 3.11 on PATH (or make PYTHON=/path/to/python3.12);" \
		"found: $$(python3 --version 2>&1)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments;" \
		"on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the packages of requirements.lock into $(VENV): two minutes with a fast network"
	@grep '^torch==' requirements.lock > $(VENV)/part.torch.lock
	@grep -v -e '^torch==' -e '^#' requirements.lock > $(VENV)/rest.lock
	@awk '{print > "$(VENV)/part." NR % 2 ".lock"}' $(VENV)/rest.lock
	@command -v uv >/dev/null 2>&1 && $(PIP) --no-deps -r $(VENV)/part.torch.lock \
		&& uv pip install -q --python $(BIN)/python -r $(VENV)/rest.lock \
		|| printf '%s\n' torch 0 1 | xargs -P 3 -I % $(PIP) --no-deps -r $(VENV)/part.%.lock
	@$(BIN)/python -c 'import torch._dynamo, transformers, scipy.stats, snakemake.cli' 2>/dev/null & \
		$(PIP) --no-build-isolation -r $(VENV)/part.torch.lock -r $(VENV)/rest.lock -e . && wait
	@rm -f $(VENV)/.installed-*
	@touch $@
