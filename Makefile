# SPDX-License-Identifier: Apache-2.0
# The front door: each word configures and builds what it needs. CMake does the work.

BUILD ?= build
VENV ?= .venv
PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
GENERATOR := $(if $(shell command -v ninja 2>/dev/null),-G Ninja)

.PHONY: all demo test test-python test-cuda-long model python bench install format clean help

all: $(BUILD)/CMakeCache.txt
	@cmake --build $(BUILD) --parallel $(JOBS)

# CMake itself reruns when one of its files changes; an existing tree keeps its generator.
$(BUILD)/CMakeCache.txt:
	@command -v cmake >/dev/null || { echo "make: cmake 3.18 or newer is needed (apt install cmake)"; exit 1; }
	@cmake -S . -B $(BUILD) $(GENERATOR) $(CMAKE_ARGS)

# The program alone, without CUDA's kernels and the tests: seconds.
demo:
	@command -v cmake >/dev/null || { echo "make: cmake 3.18 or newer is needed (apt install cmake)"; exit 1; }
	@test -f $(BUILD)/demo/CMakeCache.txt || cmake -S . -B $(BUILD)/demo $(GENERATOR) $(CMAKE_ARGS) \
		-DSTREAMKL_CUDA=OFF -DSTREAMKL_TESTS=OFF
	@cmake --build $(BUILD)/demo --parallel $(JOBS)
	@$(BUILD)/demo/bin/streamkl demo

test: all
	@cd $(BUILD) && ctest -LE cuda --output-on-failure --no-tests=error
	@cd $(BUILD) && ctest -L cuda --output-on-failure -j $(JOBS)
	@BUILD=$(abspath $(BUILD)) tests/run_all.sh
	@$(MAKE) --no-print-directory test-python

# More schedules, more random cases, every mutant of every kernel: an hour or two.
test-cuda-long: all
	@cd $(BUILD) && ctest -C Long -L long --output-on-failure --no-tests=error

# How fast the kernels should be, from their machine code.
model: all
	@test -x $(VENV)/bin/python || python3 -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check -r tools/model/requirements.txt
	@$(VENV)/bin/python -m tools.model $(BUILD)/cuda/cubin $(ARGS)

# The Python package, editable, with torch and what its tests need. Without CUDA, whose kernels take minutes to compile:
# PYTHON_CUDA=ON has it, as a wheel has by itself where nvcc is installed.
PYTHON_CUDA ?= OFF
python:
	@test -x $(VENV)/bin/python || python3 -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check 'scikit-build-core>=0.10'
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-build-isolation \
		--config-settings=cmake.define.STREAMKL_CUDA=$(PYTHON_CUDA) -e '.[test]'

test-python: python
	@$(VENV)/bin/python -m pytest

bench: all
	@$(BUILD)/bin/streamkl bench --verbose $(ARGS)

install: all
	@cmake --install $(BUILD) --prefix $(PREFIX)

format:
	@clang-format -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh')

clean:
	@rm -rf $(BUILD)

help:
	@echo "make           build the library and the program into $(BUILD)/"
	@echo "make demo      build, then show the main job on built-in data"
	@echo "make test      build, then run every test, of C and of Python"
	@echo "make bench     build, then measure speed, memory and error (ARGS=\"--help\" shows what can be asked)"
	@echo "make python    build the Python package with torch into $(VENV)/"
	@echo "make test-python   run the Python tests there"
	@echo "make test-cuda-long   the CUDA tests that take long: an hour or two"
	@echo "make model     modelled speed of the CUDA kernels, from their machine code"
	@echo "make install   install under PREFIX ($(PREFIX))"
	@echo "make format    clang-format every tracked C and CUDA file"
	@echo "make clean     remove $(BUILD)/"
	@echo "BUILD=dir, PREFIX=dir, JOBS=n and CMAKE_ARGS=\"-DSTREAMKL_...\" change the usual."
