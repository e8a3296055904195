# Everything here runs in .venv and keeps its state in .tools/state; `make clean` removes both.

PYTHON ?= python3
# the engine of `make demo`: process or docker
ENGINE ?= process
VLLM ?= 0.32.0
# how many tests run at once: two for each core, because tests and servers wait; a real server needs 3 GB
WORKERS ?= $(shell awk -v n=$$(nproc) '/^MemTotal/ {n *= 2; m = int($$2 / 4e6); n = n < m ? n : m; print n < 1 ? 1 : n < 8 ? n : 8}' /proc/meminfo)

BIN := .venv/bin
SETUP := .venv/.complete
DOCS := .venv/.docs
# without bytecode every command and every test compiles its modules again
unexport PYTHONDONTWRITEBYTECODE
export GEMMASPEC_STATE ?= $(CURDIR)/.tools/state
# exit code 4: not available on this machine; the script printed the reason, and the tests that need it are skipped
OPTIONAL := || [ $$? -eq 4 ]

.DEFAULT_GOAL := help
.PHONY: help setup demo docker image runtime test test-fast test-two-machines test-kubernetes test-kernels test-replicas lock lint reference docs golden facts oracle release-day bench load-test clients clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(SETUP) ## create .venv with gemmaspec and its development tools

$(SETUP): pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gemmaspec needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv .venv
	$(BIN)/python tools/install.py
	@touch $@

demo: setup $(if $(filter docker,$(ENGINE)),docker image) ## set up all of it and start tiny-cpu: ENGINE=process or docker
	$(BIN)/gemmaspec up tiny-cpu --engine $(ENGINE)

docker: ## install and start Docker with Compose v2 if they are missing (Debian, root)
	tools/setup-docker.sh

image: setup ## build the image gemmaspec/vllm-cpu:$(VLLM) (Debian, root)
	$(BIN)/python tools/cpu_image.py $(VLLM)

runtime: setup ## build the Python environment with vLLM for the tiny pair
	$(BIN)/python tools/runtime.py

test: setup ## run the whole suite, with real servers
	@tools/setup-docker.sh $(OPTIONAL)
	@tools/setup-tests.sh $(OPTIONAL)
	@if docker info >/dev/null 2>&1; then $(BIN)/python tools/cpu_image.py $(VLLM) $(OPTIONAL); fi
	@$(BIN)/python tools/runtime.py
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder -p tests.support.fast_first --durations=15

test-fast: setup ## only tests that start no real server and need no package index
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m 'not (real_process or real_docker or network)'

test-two-machines: setup ## run vLLM on two docker daemons in network namespaces of their own; needs root and `make image`
	GEMMASPEC_TWO_MACHINES=1 $(BIN)/pytest tests/real/test_two_machines.py -s

test-kubernetes: setup ## build Kubernetes 1.20 once, and run rendered pods on two nodes; needs root and `make image`
	tools/build-kubernetes.sh
	@$(BIN)/python tools/runtime.py
	GEMMASPEC_KUBERNETES=1 $(BIN)/pytest tests/real/test_kubernetes.py -s

test-kernels: setup ## compile every Triton patch for seven kinds of GPUs, without a GPU (some 300 builds, ten minutes)
	GEMMASPEC_KERNELS=1 $(BIN)/pytest tests/check/test_compile_kernels.py -n 0 --durations=10

test-replicas: setup ## change a patch of two replicas of vLLM in Docker under load, and count what failed; needs `make image`
	@$(BIN)/python tools/runtime.py
	GEMMASPEC_REPLICAS=1 $(BIN)/pytest tests/real/test_replicas_real.py -s

lock: setup ## renew uv.lock: every package that development needs, with the hashes of PyPI's files
	$(BIN)/python tools/lock.py

lint: setup ## run ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

reference: setup ## update the generated parts of README and docs
	$(BIN)/python tools/reference.py

docs: $(DOCS) ## build the documentation into .tools/site; a broken link or anchor fails
	$(BIN)/python tools/reference.py --check
	$(BIN)/python tools/site_docs.py .tools/docs
	$(BIN)/zensical build --clean --strict

$(DOCS): $(SETUP)
	$(BIN)/python tools/install.py docs
	@touch $@

golden: setup ## update the golden stacks of the tests and the profiles' schema; read the diff before you commit it
	$(BIN)/gemmaspec profile schema > profiles/schema.json
	$(BIN)/python -m tests.support.golden_stacks

facts: setup ## add new vLLM releases to gemmaspec/core/releases/data, and print what changed
	$(BIN)/python tools/facts.py

ORACLE_RELEASES ?= 0.33.0 0.32.0 0.26.0
oracle: setup ## query vLLM releases themselves, and write the figures into docs/explanations/oracle.md (within an hour on two cores)
	@worst=0; for part in "tables --cpu" backends "lint --profiles 500 --write"; do \
	  $(BIN)/python tools/oracle.py $$part $(ORACLE_RELEASES) || worst=$$?; done; exit $$worst

release-day: setup ## check a new vLLM from facts to docs (RELEASE=0.34.0), and write a report
	$(BIN)/python tools/release_day.py $(RELEASE)

bench: setup ## measure gemmaspec's own speed
	$(BIN)/python tools/bench.py
	$(BIN)/python tools/bench_hostile.py

load-test: setup ## load a running stack (NAME=tiny-cpu REQUESTS=10000), and count what is lost or leaks
	$(BIN)/python tools/load_test.py $(or $(NAME),tiny-cpu) --requests $(or $(REQUESTS),10000)

clients: setup ## install clients (npm, pip) into .tools and let them talk with the running tiny-cpu: CLIENTS="llm opencode"
	PYTHONPATH=. $(BIN)/python tools/clients.py $(CLIENTS)

clean: ## remove .venv, runtimes and rendered stacks of this checkout
	rm -rf .venv .tools .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
