# SPDX-License-Identifier: Apache-2.0
# The front door: each word configures and builds what it needs. CMake does the work.

BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
GENERATOR := $(if $(shell command -v ninja 2>/dev/null),-G Ninja)

.PHONY: all demo test test-python python bench install format clean help

all: $(BUILD)/CMakeCache.txt
	@cmake --build $(BUILD) --parallel $(JOBS)

# CMake itself reruns when one of its files changes; an existing tree keeps its generator.
$(BUILD)/CMakeCache.txt:
	@command -v cmake >/dev/null || { echo "make: cmake 3.18 or newer is needed (apt install cmake)"; exit 1; }
	@cmake -S . -B $(BUILD) $(GENERATOR) $(CMAKE_ARGS)

demo: all
	@$(BUILD)/bin/streamkl demo

test: all
	@cd $(BUILD) && ctest --output-on-failure --no-tests=error
	@BUILD=$(abspath $(BUILD)) tests/run_all.sh
	@$(MAKE) --no-print-directory test-python

# The Python package, editable, with torch and what its tests need.
VENV ?= .venv
python:
	@test -x $(VENV)/bin/python || python3 -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check 'scikit-build-core>=0.10'
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-build-isolation -e '.[test]'

test-python: python
	@$(VENV)/bin/python -m pytest

bench: all
	@$(BUILD)/bin/streamkl bench --verbose $(ARGS)

install: all
	@cmake --install $(BUILD) --prefix $(PREFIX)

format:
	@clang-format -i $$(git ls-files '*.c' '*.h')

clean:
	@rm -rf $(BUILD)

help:
	@echo "make           build the library and the program into $(BUILD)/"
	@echo "make demo      build, then show the main job on built-in data"
	@echo "make test      build, then run every test, of C and of Python"
	@echo "make bench     build, then measure speed, memory and error (ARGS=\"--help\" shows what can be asked)"
	@echo "make python    build the Python package with torch into $(VENV)/"
	@echo "make test-python   run the Python tests there"
	@echo "make install   install under PREFIX ($(PREFIX))"
	@echo "make format    clang-format every tracked C file"
	@echo "make clean     remove $(BUILD)/"
	@echo "BUILD=dir, PREFIX=dir, JOBS=n and CMAKE_ARGS=\"-DSTREAMKL_...\" change the usual."
