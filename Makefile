# Every target does its own set-up: a virtual environment in .venv, the pinned packages, the C++ build.
# It is repeated only when one of the files in SOURCES changes. PYTHON=python3.12 chooses another Python.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*)

# Real data for the experiments, where they lie beside the project; DATA=FOLDER names another place.
DATA ?= $(wildcard ../shared/data)

.PHONY: help demo test test-triton gpu test-awkward lint docs pages bench experiments mutants fuzz sanitize wheels clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    train networks with norms and without, in five minutes; writes demo/report.html"
	@echo "make test    run the tests"
	@echo "make test-triton  run the kernels for GPUs on CPU tensors, in Triton's interpreter (part of make test)"
	@echo "make gpu     on a machine with a GPU: its tests and measurements, into gpu.json (ten minutes)"
	@echo "make test-awkward  run them on one CPU, not as root, without HOME, in paths with spaces (ten minutes)"
	@echo "make lint    ruff, mypy, and the order of the rooms (import-linter)"
	@echo "make docs    build the documentation in docs/_build/html"
	@echo "make pages   put the stored numbers into README.md and docs/results.md"
	@echo "make bench   measure against other libraries (half an hour); writes benchmarks/results/ and docs/performance.md"
	@echo "make experiments   all figures and tables (hours; stop it at any time, the same command goes on)"
	@echo "make fuzz    broken files and hostile tensors: nothing may end the process (half an hour)"
	@echo "make mutants change the code at random and see whether a test fails (an hour; the same command goes on)"
	@echo "make sanitize run the native tests and the fuzzer under ASan and UBSan, the kernels under TSan (half an hour)"
	@echo "make wheels  build a source distribution and a manylinux wheel for each Python here, and try them (ten minutes)"
	@echo "make clean   remove all that make has made, .venv included"

demo: .venv/installed
	@PYTHONUNBUFFERED=1 $(BIN)/pointvar demo --output demo

test: .venv/installed $(if $(filter Linux,$(shell uname)),test-triton)
	@$(BIN)/python -m pytest -n auto

# Whether triton interprets is decided when it is imported: a process of its own. There is none but for Linux.
test-triton: .venv/triton
	@OMP_NUM_THREADS=1 TRITON_INTERPRET=1 POINTVAR_BACKEND=triton $(BIN)/python -m pytest -n auto tests/interpreted

# Where torch is built for a GPU, it brings its own triton along.
gpu: .venv/installed-bench
	@$(BIN)/python benchmarks/gpu.py --output gpu.json

test-awkward: .venv/installed
	@tools/awkward.sh $(BIN)/python

lint: .venv/installed
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo >.venv/imports.log || { cat .venv/imports.log; exit 1; }

docs: .venv/installed-docs
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "documentation: docs/_build/html/index.html"

pages: .venv/installed
	@$(BIN)/python -m experiments.pages

# Measures, stores, and puts the tables into the documentation; AGAINST=OTHER/src compares training with that version.
PAGE := docs/performance.md
bench: .venv/installed-bench
	@$(BIN)/python benchmarks/geometry.py
	@$(BIN)/python benchmarks/geometry.py --markdown $(PAGE)
	@$(BIN)/python benchmarks/convolution.py
	@$(BIN)/python benchmarks/convolution.py --plot --markdown $(PAGE)
	@$(BIN)/python benchmarks/initialisation.py
	@$(BIN)/python benchmarks/initialisation.py --markdown $(PAGE)
	@$(BIN)/python benchmarks/training.py
	@$(if $(AGAINST),$(BIN)/python benchmarks/training.py --against $(AGAINST))
	@$(BIN)/python benchmarks/training.py --markdown $(PAGE)
	@$(BIN)/python benchmarks/split.py
	@$(BIN)/python benchmarks/split.py --markdown $(PAGE)
	@$(BIN)/python benchmarks/predict.py
	@$(BIN)/python benchmarks/predict.py --markdown $(PAGE)
	@$(BIN)/python benchmarks/threads.py
	@$(BIN)/python benchmarks/gpu.py
	@$(BIN)/python benchmarks/gpu.py --markdown $(PAGE)
	@$(BIN)/python -m experiments.pages

# A batch of two small clouds keeps one core busy, not more: run it twice at once for two cores.
experiments: .venv/installed-bench
	@OMP_NUM_THREADS=1 $(BIN)/python -m experiments figures --output results/figures $(DATA:%=--data %)
	@OMP_NUM_THREADS=1 $(BIN)/python -m experiments tables --output results $(DATA:%=--data %)
	@$(BIN)/python -m experiments.pages

fuzz: .venv/installed
	@$(BIN)/python tests/fuzz/readers.py
	@$(BIN)/python tests/fuzz/operators.py

mutants: .venv/installed
	@$(BIN)/python tools/mutants.py

# Python itself is not built with sanitizers: the runtime is loaded before it. Its own leaks are none of ours.
SANITIZER = $(shell $${CXX:-g++} -print-file-name=lib$(1).so)
SANITIZED = PYTHONPATH=tests POINTVAR_SANITIZED=$$(echo build/sanitize/address/_native_baseline*.so) \
	LD_PRELOAD="$(call SANITIZER,asan) $(call SANITIZER,ubsan) $(call SANITIZER,stdc++)" \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
CALLS ?= 500

sanitize: .venv/installed
	@PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/sanitize/thread -G Ninja -DPOINTVAR_SANITIZE=thread >/dev/null
	@$(BIN)/ninja -C build/sanitize/thread
	@PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/sanitize/address -G Ninja -DCMAKE_BUILD_TYPE=Debug \
		-DPOINTVAR_SANITIZE=address,undefined -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python >/dev/null
	@$(BIN)/ninja -C build/sanitize/address
	@TSAN_OPTIONS=halt_on_error=1 build/sanitize/thread/threads
	@$(SANITIZED) $(BIN)/python tests/fuzz/operators.py --calls $(CALLS)
	@$(SANITIZED) $(BIN)/python -m pytest -p sanitized -p no:cacheprovider tests/ops tests/geometry \
		-k "not compile and not default_compiler"

wheels:
	@$(PYTHON) tools/wheels.py $(PYTHONS)

clean:
	rm -rf .venv build dist demo docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks examples experiments tools -name __pycache__ -type d -prune -exec rm -rf {} +

# torch by itself and first, so that nothing after it asks for another build of it.
.venv/torch: constraints.txt
	@test -x $(BIN)/python || { echo "creating .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing torch"
	@$(PIP) torch==$(shell sed -n 's/^torch==//p' constraints.txt)
	@touch $@

.venv/installed: .venv/torch $(SOURCES)
	@echo "building and installing pointvar"
	@$(PIP) scikit-build-core nanobind ninja $(if $(shell command -v cmake 2>/dev/null),,cmake)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-build-isolation -e '.[dev]'
	@touch $@

# Beside torch for the CPU, which does not ask for it.
.venv/triton: .venv/installed
	@$(PIP) --no-deps triton==$(shell sed -n 's/^triton==//p' constraints.txt)
	@touch $@

.venv/installed-bench: .venv/installed
	@echo "installing the libraries to compare with"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-build-isolation -e '.[dev,bench]'
	@touch $@

.venv/installed-docs: .venv/installed
	@echo "installing what the documentation is built with"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-build-isolation -e '.[dev,docs]'
	@touch $@
