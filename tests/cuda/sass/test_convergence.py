# SPDX-License-Identifier: Apache-2.0
"""convergence.py on small listings of which it is known whether lanes are together: exit code 0, or 1 with the names."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))
sys.path.insert(0, str(HERE))

import listing
from convergence import check

TID = "S2R R0, SR_TID.X"
ODD = "LOP3.LUT P0, RZ, R0, 0x1, RZ, 0xc0, !PT"  # is this lane's number odd?
PRODUCT = "HMMA.16816.F32.BF16 R4, R8, R12, R4"
SKIP = ["@P0 BRA `(.L_1)", "MOV R3, 0x1", ".L_1:"]
REDUCE = [f"SHFL.BFLY PT, R{3 - k % 2}, R{2 + k % 2}, {16 >> k:#x}, 0x1f|IMNMX R{3 - k % 2}, R{3 - k % 2}, R{2 + k % 2}, PT" for k in range(5)]


def steps(count: int) -> list[str]:
    """The least of all lanes' R2, in R3 after five steps."""
    return [line for text in REDUCE[:count] for line in text.split("|")]


# name, may lanes be apart, code
CASES: list[tuple[str, bool, list[str]]] = [
    ("no meeting before the product", True, [TID, ODD, *SKIP, PRODUCT]),
    ("a barrier around the branch", False, [TID, ODD, "BSSY B0, `(.L_1)", *SKIP, "BSYNC B0", PRODUCT]),
    ("a barrier that is set behind the branch", True, [TID, ODD, "@P0 BRA `(.L_1)", "BSSY B0, `(.L_1)", ".L_1:", "BSYNC B0", PRODUCT]),
    ("one barrier inside another", False, [TID, ODD, "BSSY B0, `(.L_2)", "BSSY B1, `(.L_1)", *SKIP, "BSYNC B1", "@P0 BRA `(.L_2)", "NOP", ".L_2:", "BSYNC B0", PRODUCT]),
    ("the inner barrier alone", True, [TID, ODD, "BSSY B0, `(.L_2)", "@P0 BRA `(.L_2)", "BSSY B1, `(.L_1)", *SKIP, "BSYNC B1", ".L_2:", PRODUCT]),
    ("lanes that leave the barrier", True, [TID, ODD, "BSSY B0, `(.L_1)", "@P0 BRA `(.L_2)", "NOP", ".L_1:", "BSYNC B0", PRODUCT, "EXIT", ".L_2:", "BREAK B0", "BRA `(.L_1)"]),
    ("__syncwarp", False, [TID, ODD, *SKIP, "WARPSYNC 0xffffffff", PRODUCT]),
    ("a product on one way only", True, [TID, ODD, "BSSY B0, `(.L_1)", "@P0 BRA `(.L_1)", PRODUCT, ".L_1:", "BSYNC B0"]),
    ("a matrix load", True, [TID, ODD, *SKIP, "LDSM.16.M88.4 R4, [R8]"]),
    ("a barrier of the block", True, [TID, ODD, *SKIP, "BAR.SYNC 0x0"]),
    ("lanes that have ended", True, [TID, ODD, "@P0 EXIT", "WARPSYNC 0xffffffff", PRODUCT]),
    ("a whole warp that has ended", False, ["S2R R0, SR_CTAID.X", ODD, "@P0 EXIT", PRODUCT]),
    ("an argument", False, ["MOV R0, c[0x0][0x160]", ODD, *SKIP, PRODUCT]),
    ("the warp's number", False, [TID, "SHF.R.U32.HI R0, RZ, 0x5, R0", ODD, *SKIP, PRODUCT]),
    ("half the warp's number", True, [TID, "SHF.R.U32.HI R0, RZ, 0x4, R0", ODD, *SKIP, PRODUCT]),
    ("the first two warps", False, [TID, "ISETP.GT.AND P0, PT, R0, 0x3f, PT", *SKIP, PRODUCT]),
    ("all lanes but one", True, [TID, "ISETP.GT.AND P0, PT, R0, 0x3e, PT", *SKIP, PRODUCT]),
    ("a load that all lanes share", False, ["MOV R2, c[0x0][0x160]", "MOV R3, c[0x0][0x164]", "LDG.E R0, [R2.64]", ODD, *SKIP, PRODUCT]),
    ("a load of its own", True, [TID, "IMAD.WIDE R2, R0, 0x4, R2", "LDG.E R0, [R2.64]", ODD, *SKIP, PRODUCT]),
    ("a vote", False, [TID, ODD, "VOTE.ANY P0, P0", *SKIP, PRODUCT]),
    ("a broadcast", False, [TID, "SHFL.IDX PT, R0, R0, RZ, 0x1f", ODD, *SKIP, PRODUCT]),
    ("five steps of a reduction", False, [TID, "MOV R2, R0", *steps(5), "LOP3.LUT P0, RZ, R3, 0x1, RZ, 0xc0, !PT", *SKIP, PRODUCT]),
    ("four steps of a reduction", True, [TID, "MOV R2, R0", *steps(4), "LOP3.LUT P0, RZ, R2, 0x1, RZ, 0xc0, !PT", *SKIP, PRODUCT]),
    ("the last step of a reduction behind a branch", False, [TID, ODD, "MOV R2, R0", *steps(5)[:-1], "BSSY B0, `(.L_1)", *SKIP[:1], "MOV R9, 0x1", ".L_1:", "BSYNC B0", steps(5)[-1], "LOP3.LUT P0, RZ, R3, 0x1, RZ, 0xc0, !PT", "@P0 BRA `(.L_2)", "NOP", ".L_2:", PRODUCT]),
    ("the last step of a reduction, changed for some lanes", True, [TID, ODD, "MOV R2, R0", *steps(5)[:-1], "BSSY B0, `(.L_1)", *SKIP, "BSYNC B0", steps(5)[-1], "LOP3.LUT P0, RZ, R3, 0x1, RZ, 0xc0, !PT", "@P0 BRA `(.L_2)", "NOP", ".L_2:", PRODUCT]),
    ("the same, for the others", True, [TID, ODD, "MOV R2, R0", *steps(5)[:-1], "BSSY B0, `(.L_2)", "@P0 BRA `(.L_1)", "MOV R3, 0x1", "BRA `(.L_2)", ".L_1:", "NOP", ".L_2:", "BSYNC B0", steps(5)[-1], "LOP3.LUT P0, RZ, R3, 0x1, RZ, 0xc0, !PT", "@P0 BRA `(.L_3)", "NOP", ".L_3:", PRODUCT]),
    ("written under a guard", True, [TID, ODD, "MOV R9, 0x0", "@P0 MOV R9, 0x1", "ISETP.NE.AND P1, PT, R9, RZ, PT", "@P1 BRA `(.L_1)", "NOP", ".L_1:", PRODUCT]),
    ("written under the branch's own guard, uniform, and behind it", False, ["S2R R1, SR_CTAID.X", "ISETP.NE.AND P0, PT, R1, RZ, PT", "@!P0 LDC R9, c[0x0][0x160]", "@!P0 BRA `(.L_1)", "MOV R9, c[0x0][0x160]", ".L_1:", "ISETP.NE.AND P1, PT, R9, RZ, PT", "@P1 BRA `(.L_2)", "NOP", ".L_2:", PRODUCT]),
    ("written on the other way alone", True, ["S2R R1, SR_CTAID.X", "ISETP.NE.AND P0, PT, R1, RZ, PT", "@P0 LDC R9, c[0x0][0x160]", "@!P0 BRA `(.L_1)", "MOV R9, c[0x0][0x160]", ".L_1:", "ISETP.NE.AND P1, PT, R9, RZ, PT", "@P1 BRA `(.L_2)", "NOP", ".L_2:", PRODUCT]),
    ("written under a guard that has changed since", True, ["S2R R1, SR_CTAID.X", "ISETP.NE.AND P0, PT, R1, RZ, PT", "@!P0 LDC R9, c[0x0][0x160]", "ISETP.NE.AND P0, PT, R1, 0x1, PT", "@!P0 BRA `(.L_1)", "MOV R9, c[0x0][0x160]", ".L_1:", "ISETP.NE.AND P1, PT, R9, RZ, PT", "@P1 BRA `(.L_2)", "NOP", ".L_2:", PRODUCT]),
    ("written under the branch's own guard, which lanes take differently", True, [TID, ODD, "MOV R9, 0x0", "BSSY B0, `(.L_1)", "@!P0 MOV R9, 0x1", "@!P0 BRA `(.L_1)", "NOP", ".L_1:", "BSYNC B0", "ISETP.NE.AND P1, PT, R9, 0x1, PT", "@P1 BRA `(.L_2)", "NOP", ".L_2:", PRODUCT]),
    ("the upper half of a pair", True, [TID, "MOV R2, 0x0", "MOV R3, R0", "IADD.64 R4, R2, 0x1", "ISETP.NE.AND P1, PT, R5, RZ, PT", "@P1 BRA `(.L_2)", "NOP", ".L_2:", PRODUCT]),
    ("the upper half of what is copied", True, [TID, "MOV R2, 0x0", "MOV R3, R0", "MOV.64 R4, R2", "ISETP.NE.AND P1, PT, R5, RZ, PT", "@P1 BRA `(.L_2)", "NOP", ".L_2:", PRODUCT]),
    ("the upper half of what is compared", True, [TID, "MOV R2, 0x0", "MOV R3, R0", "ISETP.NE.U64.AND P1, PT, R2, RZ, PT", "@P1 BRA `(.L_2)", "NOP", ".L_2:", PRODUCT]),
    ("the upper half of what is converted", True, [TID, "MOV R2, 0x0", "MOV R3, R0", "I2F.U64.RP R4, R2", "FSETP.NE.AND P1, PT, R4, RZ, PT", "@P1 BRA `(.L_2)", "NOP", ".L_2:", PRODUCT]),
    ("the upper half of a double", True, [TID, "MOV R2, 0x0", "MOV R3, R0", "F2I.F64.TRUNC R4, R2", "ISETP.NE.AND P1, PT, R4, RZ, PT", "@P1 BRA `(.L_2)", "NOP", ".L_2:", PRODUCT]),
    ("the upper half of what is added to an upper half", True, [TID, "MOV R2, 0x0", "MOV R3, R0", "IMAD.HI.U32 R4, R2, R2, R2", "ISETP.NE.AND P1, PT, R4, RZ, PT", "@P1 BRA `(.L_2)", "NOP", ".L_2:", PRODUCT]),
    ("the upper half of what is added", True, [TID, "MOV R2, 0x0", "MOV R3, R0", "IMAD.WIDE.U32 R4, R2, R2, R2", "ISETP.NE.AND P1, PT, R5, RZ, PT", "@P1 BRA `(.L_2)", "NOP", ".L_2:", PRODUCT]),
    ("written on one of two ways", True, [TID, ODD, "MOV R9, 0x0", "BSSY B0, `(.L_1)", "@P0 BRA `(.L_1)", "MOV R9, 0x1", ".L_1:", "BSYNC B0", "ISETP.NE.AND P1, PT, R9, RZ, PT", "@P1 BRA `(.L_2)", "NOP", ".L_2:", PRODUCT]),
    ("turns of a loop that lanes leave one by one", True, [TID, "MOV R9, 0x0", "BSSY B0, `(.L_2)", ".L_1:", "IADD3 R9, R9, 0x1, RZ", "ISETP.GE.AND P0, PT, R9, R0, PT", "@!P0 BRA `(.L_1)", ".L_2:", "BSYNC B0", "ISETP.NE.AND P1, PT, R9, 0x7, PT", "@P1 BRA `(.L_3)", "NOP", ".L_3:", PRODUCT]),
    ("turns of a loop of all lanes", False, [TID, "MOV R9, 0x0", ".L_1:", PRODUCT, "IADD3 R9, R9, 0x1, RZ", "ISETP.GE.AND P0, PT, R9, c[0x0][0x160], PT", "@!P0 BRA `(.L_1)"]),
    ("a product inside a loop that lanes leave one by one", True, [TID, "MOV R9, 0x0", ".L_1:", PRODUCT, "IADD3 R9, R9, 0x1, RZ", "ISETP.GE.AND P0, PT, R9, R0, PT", "@!P0 BRA `(.L_1)"]),
]  # fmt: skip


def as_listing(code: list[str]) -> str:
    lines = ["//------- .text.kernel -----"]
    for at, text in enumerate([*code, "EXIT"]):
        lines.append(text if text.endswith(":") else f"        /*{16 * at:04x}*/    {text} ;")
    return "\n".join(lines)


def main() -> int:
    wrong = [name for name, apart, code in CASES if bool(check(listing.read(as_listing(code))["kernel"])) != apart]
    try:
        listing.read(as_listing(["FROBNICATE R0, R1"]))
        wrong.append("an instruction that is not known is passed over")
    except listing.UnknownInstruction:
        pass
    for name in wrong:
        print(f"FAILED: {name}")
    print(f"test_convergence: {len(CASES) + 1} cases, {len(wrong)} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
