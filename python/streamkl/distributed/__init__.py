# SPDX-License-Identifier: Apache-2.0
"""The losses over a group of processes, on torch.distributed: what linear_kl and attention_kl do when they get group=
or DTensors. docs/distributed.md tells how to use it.

    call.py       a call from its arguments to its result
    dtensor.py    DTensor operands: their group, their meaning, and what is refused
    agreement.py  what the ranks tell each other before any data moves
    shard.py      what they agreed on: rows and columns of each rank, and the masks
    pieces.py     the engine on a rank's columns
    ways.py       rows whole and columns in place, or rows in place and columns on the way
    details.py    what rows tell, put together from what each rank's columns do
    teachers.py   several teachers in one batch
    autograd.py   how autograd sees it
    group.py      the collectives, each in rank order

The convention: every rank gets the same loss and the same upstream gradient; gradients of rows are summed over the
ranks, those of columns stay where the columns are.
"""

from .autograd import averaged
from .call import Place, attention, linear
from .teachers import by_teacher

__all__ = ["Place", "attention", "averaged", "by_teacher", "linear"]
