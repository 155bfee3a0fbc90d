# SPDX-License-Identifier: Apache-2.0
"""streamkl beside other ways to compute the same.

onednn     a limit for torch where its own bf16 product dies
cli        the options and the order of things
case       one problem: its inputs, its size
ways       the ways to compute it: ours and the others
worker     a process for each way, which may crash or hang
measure    time and peak memory of one way, error of its gradient against float64
report     progress, table, CSV, plot
front      the picture of the front page: which cases, measured or read
picture    its drawing
trainers   the losses of TRL's trainers and of Liger beside streamkl's
drift      what a drift report costs beside the models' own bodies
bars       what the project promises about itself, measured
"""
