# Everything that a contributor runs. Each target sets up what it needs; Python 3.11 or newer and make are enough.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# What is imported is compiled then; to compile all packages takes a third of the time to install them.
INSTALL := install --quiet --disable-pip-version-check --no-compile
CHECKED := client/evald server/evald_server benchmarks
# Whose Python blocks users copy into code of their own, which they check.
TYPED_PAGES := README.md docs/sdk.md

.DEFAULT_GOAL := help
# Images of containers often set it; every process would then compile what it imports anew.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help demo demo-console test thorough frameworks interop browser languages real-judge lint format types contract proto bench check lock release-baseline clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-17s %s\n", $$1, $$2}' Makefile

demo: $(READY) ## See real conversations evaluated
	$(BIN)/evald demo

demo-console: $(READY) ## The same, and leave the web console open
	$(BIN)/evald demo --console

test: $(READY) ## Run the tests
	.ci/test.sh $(BIN)

thorough: $(READY) ## Run the tests that repeat others with more inputs, processes or kills
	.ci/test.sh $(BIN) thorough

frameworks: .venv-frameworks/.ready ## Put real objects of other agent frameworks through the SDK
	.venv-frameworks/bin/pytest -m frameworks tests/frameworks

interop: $(READY) ## Run the tests against other people's tools: buf curl, grpc-js, Prometheus, Envoy
	.ci/pytest.sh $(BIN) -m interop $$(grep -rl --include='*.py' --exclude-dir=languages 'mark\.interop' tests)

browser: .venv/.browser ## Look at the HTML pages in Chromium; needs npm; screenshots go to build
	.ci/pytest.sh $(BIN) -m browser tests/suites/reports tests/http

languages: $(READY) ## Build and run the examples in Go, TypeScript, Java and Rust, those whose tools are installed
	.ci/languages.sh

real-judge: $(READY) ## Have a real, small model judge on this machine; compiles its server, once
	examples/real-judge/run.sh

lint: $(READY) ## Check rules and format of the Python code
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(READY) ## Format the Python code and the contract
	$(BIN)/ruff format
	$(BIN)/buf format --write protos

types: $(READY) ## Check the types, of blocks in documents too
	$(BIN)/python .ci/blocks.py build/pages $(TYPED_PAGES)
	$(BIN)/mypy $(CHECKED) build/pages

contract: $(READY) ## Check the contract and that the generated code follows it
	.ci/contract.sh

proto: ## Generate the Python code of the contract
	.ci/generate.sh .

bench: $(READY) ## Measure what evald costs, as ratios to a bare gRPC server; about 10 minutes
	$(BIN)/python -m benchmarks --write

check: lint types contract test thorough ## Everything that needs Python alone

lock: $(READY) ## Resolve deploy/requirements.lock anew
	.ci/lock.sh

release-baseline: $(READY) ## Make today's contract the one that later ones must not break
	$(BIN)/buf build protos --exclude-source-info -o protos/baseline.binpb

clean: ## Remove everything that these targets made
	rm -rf .venv .venv-frameworks build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf examples/remote/go/bin examples/remote/java/target examples/remote/rust/target $(addprefix examples/remote/typescript/,dist node_modules src/gen)
	find client server tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} +

$(READY): pyproject.toml
	@command -v $(PYTHON) >/dev/null || \
	  { echo "evald needs Python 3.11 or newer; there is no $(PYTHON). Name one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "evald needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Name another: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Setting up .venv, once: about a minute"
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@$(BIN)/pip $(INSTALL) -e '.[dev]'
	@touch $@

.venv/.browser: $(READY)
	@$(BIN)/pip $(INSTALL) -e '.[browser]'
	@touch $@

# Of its own, because AutoGen wants an older protobuf than evald's newest.
.venv-frameworks/.ready: pyproject.toml
	@test -x .venv-frameworks/bin/pip || $(PYTHON) -m venv .venv-frameworks
	@.venv-frameworks/bin/pip $(INSTALL) -e '.[frameworks]'
	@touch $@
