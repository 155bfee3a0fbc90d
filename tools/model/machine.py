# SPDX-License-Identifier: Apache-2.0
"""The GPUs of the model. Every number says where it comes from; calibration.md says how well they do together.

Sources: [ptxas] stall counts that ptxas itself puts between dependent or back-to-back instructions; [guide] throughput
tables of the CUDA programming guide (results per clock and multiprocessor, divided into 4 partitions of 32 lanes);
[micro] published microbenchmarks of Volta to Hopper, rounded, not fitted here; [fit] chosen on the A100 set of
calibration.md; [guess] no better source than a plausible figure, with a note how little it matters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

DRIVER_SHARED = 1024  # bytes of shared memory that the driver keeps of every block


@dataclass(frozen=True)
class Machine:
    """Intervals are cycles between two instructions on a pipe of one of the 4 partitions; latencies are cycles."""

    name: str = "A100"
    arch: int = 80
    # What a multiprocessor takes
    multiprocessors: int = 108
    clock: float = (
        1.41  # GHz, boost: what an unthrottled run has. A100 draws too much power to hold it, see calibration.md
    )
    shared_bytes: int = 164 * 1024
    registers: int = 65536
    max_warps: int = 64
    correction: float = 0.97  # measured / modelled, calibration.md
    # Pipes
    hmma: float = 8  # m16n8k16 with f32 sums: [ptxas] 8 apart = 1024 FMA a clock and multiprocessor = 312 TFLOP/s
    fp32: float = 2  # [guide] 64 a clock: 16 lanes a partition
    imad: float = 2  # [guide] 64; shares the fp32 pipe where that has an interval of 2
    alu: float = 2  # [guide] 64: integer, compare, select, move, maximum
    fp16: float = 2
    mufu: float = 8  # [guide] 16 a clock: 4 lanes a partition
    uniform: float = 2  # [micro]
    mufu_queue: int = 2  # MUFU that may wait in front of the pipe [guess]
    memory_queue: int = 6  # shared memory instructions of a partition that may wait [guess]
    memory_interval: int = 2  # between two of them [micro]
    shared_port: float = 128  # bytes a clock, all partitions together [guide]: an LDSM.x4 takes 4 clocks
    l2_port: float = 40  # bytes a clock into one multiprocessor [micro] chip-wide L2 bandwidth / multiprocessors
    register_ports: bool = True  # 2 banks, each one 32-lane read a clock [fit]: an HMMA reads 5 of each
    conflicts: float = 1  # ways of bank conflicts of LDSM and LDS; the emulator counts them
    # Latencies [micro]
    ldsm_latency: int = 30
    lds_latency: int = 24
    shuffle_latency: int = 24
    mufu_latency: int = 20
    l2_latency: int = 320  # 320 to 800 changes kernels with cp.async by 0 to 4 %
    barrier_latency: int = 20
    special_latency: int = 25  # S2R, LDC
    release_latency: int = 12  # until a memory instruction has read its registers
    branch: int = 2  # after a taken branch

    def blocks(self, registers: int, threads: int, shared: int) -> int:
        """Blocks of a multiprocessor; registers go to warps in units of 256."""
        warps = threads // 32
        of_warp = -(-(-(-registers // 8) * 8 * 32) // 256) * 256
        return min(
            self.registers // (of_warp * warps),
            self.shared_bytes // (shared + DRIVER_SHARED),
            self.max_warps // warps,
            32,
        )


A100 = Machine()
H100 = replace(
    A100,
    name="H100",
    arch=90,
    multiprocessors=132,
    clock=1.755,  # SXM under load, the clock that FlashAttention's figures were compared at
    shared_bytes=228 * 1024,
    correction=0.95,
    hmma=6,  # [ptxas] mma.sync reaches 2/3 of what wgmma does
    fp32=1,  # [guide] 128 a clock
    l2_port=36,
)
# GeForce: a quarter of A100's tensor rate a clock and multiprocessor, with f32 sums. No correction: see calibration.md.
RTX3090 = replace(
    A100, name="RTX 3090", arch=86, multiprocessors=82, clock=1.68, shared_bytes=100 * 1024, max_warps=48,
    hmma=32, fp32=1, l2_port=24, correction=1,
)  # fmt: skip
RTX5090 = replace(RTX3090, name="RTX 5090", arch=120, multiprocessors=170, clock=2.407, imad=1, alu=1)

MACHINES = {m.arch: m for m in (A100, H100, RTX3090, RTX5090)}
