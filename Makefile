# Everything happens in .venv, set up on first use and brought up to date when a pin or a C++ source changes.
# `make help` lists the targets; PYTHON and CXX choose the interpreter and the compiler.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: run test lint tidy docs peers models model-costs stress stress-ci stress-processes stress-faults stress-mixed stress-hosts fuzz-semantics bench bench-baseline record predictions search-cells clean help

PYTHON ?= python3
ifeq ($(origin CXX),default)
CXX := c++
endif
export CXX

VENV := .venv
BIN := $(VENV)/bin
SET_UP := $(VENV)/.installed
NATIVE := CMakeLists.txt $(shell find csrc/core csrc/bindings csrc/extensions)
SANITIZERS := address thread
BASELINES := tests/perf/baselines
FIGURES := results/reference/bench.json
STUDIES := default thesis matrix
BENCH_STUDIES := peers links namespaces latency scaling intent
ROUNDS := --benchmark-min-rounds=25

export PIP_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP := $(BIN)/pip -qq

run: $(SET_UP)  ## train the default study and plot it
	@$(BIN)/adabench run --fresh

# One process more than there are cores, for some tests wait for timeouts; and no threads of PyTorch beside them,
# whose number nproc would take for that of the cores.
test: $(SET_UP)  ## run the Python tests, on all cores
	@cores=$$(env -u OMP_NUM_THREADS nproc); \
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/pytest -n $$((cores < 7 ? cores + 1 : 8)) --dist worksteal

lint: $(SET_UP)  ## check style, docstrings, spelling, types, imports and stubs
	@mkdir -p build
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@find csrc -name '*.cc' -o -name '*.h' | xargs $(BIN)/clang-format --dry-run -Werror
	@git ls-files -z ':!typings' | xargs -0 $(BIN)/codespell
	@git ls-files -z '*.py' ':!docs' ':!tests' ':!typings' | xargs -0 $(BIN)/numpydoc lint
	@$(BIN)/mypy typings tests tools
	@PYTHONPATH=typings:$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') $(BIN)/python -S -c 'from importlinter.cli import lint_imports_command; lint_imports_command()' --no-cache > build/imports.log || { cat build/imports.log; exit 1; }
	@MYPYPATH=typings $(BIN)/stubtest --mypy-config-file pyproject.toml --allowlist typings/stubtest-allowlist.txt adaps._core adabench.usecases.gcn._sampler adabench.usecases.common._partition

tidy: $(SET_UP)  ## look for mistakes in the C++ code with clang-tidy, two minutes of CPU time
	@ls csrc/core/*/*.cc csrc/bindings/*.cc csrc/extensions/*/*.cc | xargs -P $$(nproc) -I{} $(BIN)/clang-tidy --quiet {} -- -std=c++20 \
	    -Icsrc/core -isystem $$($(BIN)/python -c 'import pybind11; print(pybind11.get_include())') \
	    -isystem $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')

docs: $(SET_UP)  ## build the documentation into build/docs; warnings are errors
	@$(BIN)/sphinx-build -q -W --keep-going docs build/docs
	@echo "documentation: build/docs/index.html"

# Without their dependencies: these would install CUDA, and all that is needed of them is named here.
peers: $(SET_UP)  ## install TorchRec, which the backend torchrec compares with
	@$(PIP) install --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0 tensordict torchmetrics==1.0.3 pyre-extensions iopath tqdm cloudpickle lightning-utilities mypy_extensions packaging portalocker pyvers typing-inspect

# Without their dependencies, too: some want another torch. What the models need of them is named here, and pinned.
models: $(SET_UP)  ## install the libraries whose models and trainers `make test` then uses, plainly and on the parameter server
	@$(PIP) install --no-deps deepctr-torch torchfm torch-rechub recbole pykeen transformers x-transformers gensim \
	    accelerate lightning pytorch-ignite skorch \
	    absl-py class-resolver click cloudpickle colorama colorlog docdata einops einx frozendict h11 httpcore2 httpx2 huggingface-hub joblib lightning-utilities loguru more-click more-itertools \
	    narwhals protobuf pystow regex safetensors scikit-learn smart-open tabulate tensorboard texttable threadpoolctl tokenizers torch-einops-utils torch-max-mem torch-ppr torchmetrics tqdm truststore wrapt

model-costs: $(SET_UP)  ## print what a step of each of these models costs on one node, as a ratio to plain PyTorch's
	@$(BIN)/python -m tests.models.costs

stress: CTEST_SHARE :=
stress: $(addprefix stress-,release $(SANITIZERS)) stress-processes stress-faults stress-mixed stress-hosts  ## run all C++ tests, optimised and under every sanitizer, and the server's Python tests at full size

stress-ci: CTEST_SHARE := -LE long
stress-ci: $(addprefix stress-,$(SANITIZERS))  ## the same without the optimised build and the tests labelled long

# With the address sanitizer, clang compiles faster than GCC, and its build includes the targets of `make fuzz`.
CLANG = $(shell echo 'int main() {}' | clang++ -x c++ -std=c++20 -include span -fsanitize=fuzzer-no-link,address,undefined -o /dev/null - 2> /dev/null && echo clang++)
COMPILER = $(CXX)
stress-address: COMPILER = $(or $(CLANG),$(CXX))

# ThreadSanitizer of older compilers needs address randomisation off.
stress-%: export PATH := $(CURDIR)/$(BIN):$(PATH)
stress-%: $(SET_UP)
	@mkdir -p build
	@cmake --preset $* -DCMAKE_CXX_COMPILER=$(COMPILER) > build/$*.log || { cat build/$*.log; exit 1; }
	@cmake --build --preset $*
	@$$(setarch -R true 2> /dev/null && echo setarch -R) ctest --preset $* -j $$(nproc) $(CTEST_SHARE)

stress-processes: $(SET_UP)
	@$(BIN)/pytest --full --timeout=0 tests/integration/test_guarantees_*.py tests/perf/test_server_perf.py

stress-faults: $(SET_UP)  ## let nodes fail in every way and phase, and keep the table of what the others met; some of it needs root
	@$(BIN)/pytest --full --timeout=0 tests/integration/test_faults.py --record-faults=results/reference/faults.md

stress-mixed: $(SET_UP)  ## half an hour of work on four nodes of which one fails again and again
	@$(BIN)/pytest --full --timeout=0 -s tests/integration/test_mixed_load.py

stress-hosts: $(SET_UP)  ## an hour of two torchrun agents in two network namespaces with faults of every kind, and keep the page of it; needs root
	@$(BIN)/pytest --full --timeout=0 -s tests/integration/test_two_agents.py --record-agents=results/reference/hosts.md

fuzz: SECONDS := 60
fuzz: export PATH := $(CURDIR)/$(BIN):$(PATH)
fuzz: $(SET_UP)  ## search the fuzz targets by coverage, each for SECONDS of CPU time; needs clang and its runtime
	@[[ -n "$(CLANG)" ]] || { echo "There is no clang++ with sanitizers, which libFuzzer is part of: install it (Debian: apt install clang libclang-rt-dev)." >&2; exit 1; }
	@$(PIP) install atheris
	@mkdir -p build
	@cmake --preset address -DCMAKE_CXX_COMPILER=$(CLANG) > build/address.log || { cat build/address.log; exit 1; }
	@cmake --build --preset address --target fuzzers
	@$(BIN)/python tests/fuzz/search.py --seconds $(SECONDS) --jobs $$(nproc)

fuzz-semantics: PROGRAMS := 100000
fuzz-semantics: $(SET_UP)  ## run PROGRAMS random programs plain and wrapped on one node, and a tenth of them on two
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz_semantics --programs $(PROGRAMS) --refusals
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz_semantics --programs $$(($(PROGRAMS) / 10)) --nodes 2 --refusals

bench: $(SET_UP)  ## measure speed against references in the same run, the recorded baseline, other systems and the goals, in three quarters of an hour
	@$(BIN)/pytest -q --collect-only tests/perf $(ROUNDS) --baseline=$(BASELINES) > /dev/null # refused before all that work
	@failed=(); \
	for study in $(BENCH_STUDIES); do $(BIN)/adabench run --fresh --study $$study -r 3 || failed+=("adabench run --study $$study"); done; \
	$(BIN)/pytest --timeout=0 tests/perf $(ROUNDS) --baseline=$(BASELINES) --record-goals=$(FIGURES) || failed+=("pytest tests/perf"); \
	$(BIN)/python tools/keep_sessions.py $(BENCH_STUDIES) || failed+=("python tools/keep_sessions.py"); \
	echo "figures and goals: results/reference/BENCH.md; sessions: docs/reference/recorded-sessions.md"; \
	for command in "$${failed[@]}"; do echo "failed: $$command" >&2; done; \
	((!$${#failed[@]}))

bench-baseline: $(SET_UP)  ## record this processor's baseline of make bench, in five processes; best on a machine that does nothing else
	@new=$$(mktemp -d); trap 'rm -rf "$$new"' EXIT; \
	for process in {1..5}; do $(BIN)/pytest --timeout=0 tests/perf --benchmark-only $(ROUNDS) --record-baseline="$$new"; done; \
	mkdir -p $(BASELINES); cp "$$new"/*.json $(BASELINES)/

record: $(SET_UP)  ## run the studies that the documentation shows, half an hour, and keep their sessions and figures
	@for study in $(STUDIES); do $(BIN)/adabench run --fresh --study $$study; done
	@$(BIN)/python tools/keep_sessions.py $(STUDIES)

predictions: $(SET_UP)  ## run the study of simulated times, a quarter of an hour or the rest of it, and write how far they are off
	@$(BIN)/python tools/judge_simulation.py

search-cells: $(SET_UP)  ## search for policies in twelve cells, train with what is found and with what builders make, half an hour or the rest of it
	@$(BIN)/python tools/judge_search.py

clean:  ## remove what builds and tools left behind; .venv and recorded sessions stay
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .benchmarks .hypothesis
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*  ## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

$(VENV)/.created:
	@command -v $(PYTHON) > /dev/null || { echo "There is no $(PYTHON): install Python 3.10 or newer, or say 'make PYTHON=…'." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if v >= (3, 10) else "$(PYTHON) is Python %d.%d; 3.10 or newer is needed: say make PYTHON=…." % v)'
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { echo "$(PYTHON) cannot make virtual environments: install its venv module (Debian: apt install python3-venv)." >&2; exit 1; }
	@printf '#include <concepts>\n#include <span>\n' | $(CXX) -std=c++20 -x c++ -fsyntax-only - 2> /dev/null || { echo "'$(CXX)' is no C++20 compiler: install one (Debian: apt install g++), or name it with 'make CXX=…'." >&2; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) -V)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.tools: $(VENV)/.created constraints.txt
	@echo "Installing torch and the build tools"
	@$(PIP) install torch cmake ninja pybind11 scikit-build-core
	@touch $@

# In an isolated environment, which is a new one each time, every C++ file would be compiled each time.
$(SET_UP): $(VENV)/.tools pyproject.toml $(NATIVE)
	@echo "Building and installing the project"
	@$(PIP) install --no-build-isolation -e '.[dev,docs]'
	@touch $@
