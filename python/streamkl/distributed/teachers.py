# SPDX-License-Identifier: Apache-2.0
"""Several teachers in one batch whose vocabulary is spread over the ranks: a loss over the group for each of them. A rank
whose rows a teacher does not have takes part with none."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

from .. import _teachers
from .._checks import bad
from .._groups import refuse_beside
from . import dtensor
from .agreement import agree
from .call import Place, eager
from .group import Group


@eager
def by_teacher(
    linear_kl: Callable[..., Any],
    tensors: Dict[str, Any],
    teachers: Any,
    details: Sequence[str],
    return_lse: bool,
    place: Place,
    options: Mapping[str, Any],
) -> Any:
    """tensors: as linear() takes them, without x_t, w_t and bias_t. What is wrong with the list on one rank is an error on all:
    each of its losses asks the ranks again, but a rank that raised before would leave the others waiting."""
    spread_out = any(dtensor.is_spread(t) for t in tensors.values())
    group = Group(dtensor.mesh_of(tensors, dtensor.LINEAR) if spread_out else place.group)
    over_rows = {name: tensors[name] for name in ("weight", "labels", "mass_ids")}
    failure: Optional[Exception] = None
    number = 0
    try:
        refuse_beside(**{name: tensors[name] for name in ("x_t", "w_t", "bias_t")})
        if dtensor.is_spread(tensors["x_s"]):
            raise bad("x_s", "DTensor", "with teachers= it must be a plain tensor, this rank's rows", TypeError)
        number = len(_teachers.checked(tensors["x_s"], teachers, over_rows)[0])
    except Exception as error:
        failure = error
    if place.check is not False:
        agree(group, {"number of teachers": float(number)}, {}, failure)
    elif failure is not None:
        raise failure
    each = functools.partial(linear_kl, group=place.group, rows=place.rows, check=place.check)
    told = (tensors["bias_s"], details, return_lse, options)
    return _teachers.by_teacher(each, tensors["x_s"], tensors["w_s"], teachers, over_rows, *told)
