# SPDX-License-Identifier: Apache-2.0
"""What a CUDA kernel would do on a GPU that is not here: a throughput model that reads machine code.

    elf.py       what a cubin says of its kernels: code, registers, shared and local memory. No other program needed
    raw.py       opcodes and branch targets out of the code itself. No other program needed
    sass.py      the same through nvdisasm, with operands and control codes
    flow.py      the main loop and the path through it that is not an edge case
    kernels.py   reads kernels.toml: tile arithmetic, expected counts, bars
    machine.py   the GPUs
    pipes.py     which pipe, how long, which registers: one instruction
    simulate.py  one multiprocessor running that path
    __main__.py  the table: python -m tools.model --help

calibration.md says how far the figures can be trusted: about 10 % for pipelined attention-like kernels.
"""
