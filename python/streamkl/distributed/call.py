# SPDX-License-Identifier: Apache-2.0
"""A loss over a group of processes: from the arguments of linear_kl and attention_kl to their result."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .. import _c, _ops
from .._call import EXCHANGE_ROWS
from .._checks import bad
from .._details import refuse_without_labels
from .._inputs import Inputs, attention_inputs, gradients_wanted, linear_inputs
from .._ops import OPERANDS, row_bits
from .._options import COLUMNS, FIELDS, IGNORE_INDEX, Options, make_options
from . import dtensor
from .agreement import BY_ROW, Table, agree, alone, say_inputs, say_options, say_sums
from .autograd import ShardReduced, ShardRows, averaged_by
from .details import bits_of_call, rows_told, told_of, wanted
from .group import Group
from .pieces import Run, held, with_fields
from .shard import (
    Shard,
    check_cover,
    check_same_ids,
    columns_should_travel,
    global_masks,
    local_options,
    runs_in_order,
    runs_of,
)
from .ways import names_of, way_of

_LSES = ("lse_s", "lse_t")
MASS_IDS_AT = _c.INPUTS.index("mass_ids")
REDUCTION = FIELDS.index("reduction")
_ROWS = ("replicated", "sharded")


class Place(NamedTuple):
    """Where the operands are: the arguments that a call on one process does not have."""

    group: Any = None
    rows: Optional[str] = None
    check: Optional[bool] = None
    key_offset: Any = None
    key_positions: Any = None


class Prepared(NamedTuple):
    """A call that is right as far as this rank can tell."""

    use: int
    options: Options
    inputs: Inputs
    by_row: bool
    sharded: bool
    runs: Optional[List[Run]]  # of this rank's keys, if it was told; None: after those of the ranks before it
    places: Optional[Tensor]  # the keys' positions as they were told, where the keys were brought to another order
    details: Sequence[str]  # what is to be told of the rows
    names: Sequence[str]  # the row results that it is made of
    need: int
    wide: int

    @property
    def rows(self) -> int:
        """Of this rank: the dimension that is split."""
        return self.inputs[0].shape[:-1].numel() if self.use == _c.LINEAR else self.inputs[0].shape[-2]


def eager(function: Callable) -> Callable:
    """torch.compile breaks its graph here: what the ranks say to each other decides what is computed."""
    try:
        return torch.compiler.disable(function, reason="streamkl: a loss over a process group is not compiled")
    except TypeError:  # before torch 2.7
        return torch.compiler.disable(function)


@eager
def linear(
    tensors: Dict[str, Any],
    options: Mapping[str, Any],
    return_lse: bool,
    place: Place,
    details: Sequence[str] = (),
) -> Any:
    """tensors: by their names, x_s, w_s, x_t, w_t, weight, bias_s, bias_t, labels, mass_ids; x_t, w_t None: no teacher."""

    def prepare(t: Dict[str, Any], sharded: bool) -> Prepared:
        operands = (t[name] for name in ("x_s", "w_s", "x_t", "w_t", "bias_s", "bias_t"))
        inputs = linear_inputs(*operands, t["weight"], t["labels"], t["mass_ids"])
        _check_labels(inputs, options)
        if details and return_lse:
            raise bad("return_lse", True, "with details, ask for 'lse_s' and 'lse_t' there")
        told = _LSES if return_lse else tuple(details)
        names = _LSES if return_lse else wanted(details, inputs)
        for name in ("key_offset", "key_positions"):
            if getattr(place, name) is not None:
                raise bad(name, getattr(place, name), "linear_kl has no keys", TypeError)
        if sharded:
            inputs = tuple(_flat(x, i) for i, x in enumerate(inputs))
        return _prepared(_c.LINEAR, options, inputs, sharded, details=told, names=names)

    shape, loss, told = _run(tensors, dtensor.LINEAR, options, place, prepare)
    loss = loss.reshape(shape) if loss.dim() else loss
    told = {name: t.reshape(shape) if t.dim() else t for name, t in told.items()}
    if return_lse:
        return loss, told["lse_s"], told["lse_t"]
    return (loss, told) if details else loss


def _check_labels(inputs: Inputs, options: Mapping[str, Any]) -> None:
    if inputs[_c.LABELS_AT] is None:
        return refuse_without_labels(options)
    if inputs[0].device.type != "cpu":
        raise bad("labels", inputs[0].device, "over a process group only the CPU has them", NotImplementedError)


def _flat(t: Optional[Tensor], i: int) -> Optional[Tensor]:
    """Rows in one dimension: that of operands' vectors stays."""
    if t is None or i in (1, 2, 4, 5):
        return t
    return t.reshape(-1, t.shape[-1]) if i < OPERANDS or i == MASS_IDS_AT else t.reshape(-1)


@eager
def attention(tensors: Dict[str, Any], options: Mapping[str, Any], return_lse: bool, place: Place) -> Any:
    """tensors: by their names, q_s, k_s, q_t, k_t, weight, begin, end."""

    def prepare(t: Dict[str, Any], sharded: bool) -> Prepared:
        inputs = attention_inputs(t["q_s"], t["k_s"], t["q_t"], t["k_t"], t["weight"], t["begin"], t["end"])
        for name in ("q_s", "k_s", "q_t", "k_t"):
            if t[name].dim() != 4:
                raise bad(f"{name}.shape", tuple(t[name].shape), "it must have four dimensions")
        keys = t["k_s"].shape[2]
        if t["k_t"].shape[2] != keys:
            raise bad("k_t.shape[2]", t["k_t"].shape[2], f"it must be {keys}, this rank's keys in k_s")
        runs, places = _told_runs(place, keys)
        if places is not None:
            columns, order = (_c.INPUTS.index("b_s"), _c.INPUTS.index("b_t")), places.argsort()
            inputs = tuple(k.index_select(2, order.to(k.device)) if i in columns else k for i, k in enumerate(inputs))
        return _prepared(_c.ATTENTION, options, inputs, sharded, runs, places, _LSES if return_lse else ())

    _, loss, rows = _run(tensors, dtensor.ATTENTION, options, place, prepare)
    return (loss, rows["lse_s"], rows["lse_t"]) if return_lse else loss


def _told_runs(place: Place, keys: int) -> Tuple[Optional[List[Run]], Optional[Tensor]]:
    """The runs of this rank's keys in ascending order, and the positions if the keys have another order."""
    if place.key_offset is not None and place.key_positions is not None:
        raise bad("key_offset", place.key_offset, "key_positions= says it already", TypeError)
    if place.key_offset is not None:
        if isinstance(place.key_offset, bool) or not isinstance(place.key_offset, int) or place.key_offset < 0:
            raise bad("key_offset", place.key_offset, "it must be the global position of this rank's first key")
        return [Run(place.key_offset, keys)], None
    if place.key_positions is None:
        return None, None
    positions = torch.as_tensor(place.key_positions)
    if positions.shape != (keys,) or positions.is_floating_point() or positions.dtype is torch.bool:
        what = (tuple(positions.shape), positions.dtype)
        raise bad("key_positions", what, f"it must hold {keys} integers, the global positions of this rank's keys")
    if bool((positions.diff() > 0).all()):
        return runs_of(positions), None
    return runs_of(positions.sort().values), positions


def _prepared(
    use: int,
    given: Mapping[str, Any],
    inputs: Inputs,
    sharded: bool,
    runs: Optional[List[Run]] = None,
    places: Optional[Tensor] = None,
    details: Sequence[str] = (),
    names: Optional[Sequence[str]] = None,
) -> Prepared:
    options = make_options(use, given)
    heads = [t for t in (inputs[1], inputs[4]) if t is not None]
    least = min(t.shape[-2] if t.dim() > 1 else 0 for t in heads)
    if least:  # the engine's own checks, of everything but the columns, which it does not see as a whole
        part = [t if i not in (1, 4) or t is None else t[..., :least, :] for i, t in enumerate(inputs[:OPERANDS])]
        part = [t if i not in (2, 5) or t is None else t[:least] for i, t in enumerate(part)]
        _check_bias(inputs)
        part[3:5] = part[3:5] if part[4] is not None else part[:2]  # without a teacher: the student alone
        whole = (_c.LABELS_AT, MASS_IDS_AT)  # they count all columns
        rest = [None if i in whole else t for i, t in enumerate(inputs)][OPERANDS:]
        _ops.check_partial([*part, *rest], local_options(options))
    need, wide = gradients_wanted(inputs[:OPERANDS])
    names = details if names is None else names
    return Prepared(
        use, options, inputs, given.get("reduction") == "none", sharded, runs, places, details, names, need, wide
    )


def _check_bias(inputs: Inputs) -> None:
    for name, w, bias in (("bias_s", inputs[1], inputs[2]), ("bias_t", inputs[4], inputs[5])):
        if bias is not None and bias.shape != w.shape[:1]:
            raise bad(f"{name}.shape", tuple(bias.shape), f"it must be {tuple(w.shape[:1])}, as this rank's rows of w")


def _run(
    tensors: Dict[str, Any],
    kind: dtensor.Kind,
    options: Mapping[str, Any],
    place: Place,
    prepare: Callable[[Dict[str, Any], bool], Prepared],
) -> Tuple[Sequence[int], Tensor, Dict[str, Tensor]]:
    """The shape of this rank's rows, the loss and the row results."""
    spread_out = any(dtensor.is_spread(t) for t in tensors.values())
    if spread_out and place.group is not None:
        raise bad("group", place.group, "DTensors bring their own", TypeError)
    if not spread_out and place.group is None:
        given = next(
            name for name in ("rows", "key_offset", "key_positions", "check") if getattr(place, name) is not None
        )
        raise bad(
            given, getattr(place, given), "it says how a loss is split over processes, and needs group=", TypeError
        )
    mesh = dtensor.mesh_of(tensors, kind) if spread_out else None
    group = Group(place.group if mesh is None else mesh)
    made: Optional[Prepared] = None
    failure: Optional[Exception] = None
    try:
        sharded = place.rows
        if mesh is not None:
            spread = dtensor.spread_of(tensors, kind, mesh)
            tensors = dtensor.local_tensors(tensors, kind, spread, options.get("columns"))
            sharded = place.rows or spread.rows
            if sharded == "sharded" and spread.average != 1:
                given = [name for name in kind.rows if tensors[name] is not None]
                tensors.update({name: averaged_by(tensors[name], spread.average) for name in given})
        if sharded is not None and sharded not in _ROWS:
            raise bad("rows", sharded, "it must be 'replicated' (None) or 'sharded'")
        if place.check is not None and not isinstance(place.check, bool):
            raise bad("check", place.check, "it must be True, False, or None: on the CPU", TypeError)
        made = prepare(tensors, sharded == "sharded")
    except Exception as error:
        failure = error
    shard = _agreed(group, kind, made, failure, place.check, tensors[kind.rows[0]])
    assert made is not None
    shape = tensors[kind.rows[0]].shape[:-1]
    return (shape, *_divergence(shard, made))


def _agreed(
    group: Group, kind: dtensor.Kind, made: Optional[Prepared], failure: Optional[Exception], check: Any, a: Any
) -> Shard:
    asks = check if isinstance(check, bool) else not (isinstance(a, Tensor) and a.is_cuda)
    if made is None:
        assert failure is not None
        if asks:
            agree(group, {}, {}, failure)
        raise failure
    names = {"a_s": kind.rows[0], "a_t": kind.rows[1], "b_s": kind.columns[0], "b_t": kind.columns[1]}
    same, own = _say(made, names, asks)
    table = agree(group, same, own, None) if asks else alone(group, same, own)
    return _shard(group, made, table, asks)


def _say(made: Prepared, names: Dict[str, str], asks: bool) -> Tuple[Dict[str, float], Dict[str, float]]:
    """What has to be the same on every rank, and what need not."""
    same = {**say_options(made.options), "rows": float(made.sharded)}
    if made.by_row:
        same["reduction"] = BY_ROW
    same["details"] = float(row_bits(*made.names))
    ids = made.inputs[MASS_IDS_AT]
    same["mass_ids.shape[-1]"] = -1.0 if ids is None else float(ids.shape[-1])
    same.update(say_inputs(names, made.inputs, made.need))
    if made.use == _c.ATTENTION:
        for place, name in names.items():
            batch, heads = made.inputs[_c.INPUTS.index(place)].shape[:2]
            same.update({f"{name}.shape[0]": float(batch), f"{name}.shape[1]": float(heads)})
        same["key_offset or key_positions given"] = float(made.runs is not None)
    b_s, b_t = made.inputs[1], made.inputs[1] if made.inputs[4] is None else made.inputs[4]
    own = {"columns of b_s": float(b_s.shape[-2]), "columns of b_t": float(b_t.shape[-2])}
    own.update(zip(_LABELS, _label_range(made)))
    own["workspace_limit"] = float(made.options[FIELDS.index("workspace_limit")])
    own.update({"runs": float(len(made.runs or ())), "start": float(made.runs[0].start if made.runs else 0)})
    own["keys in another order"] = float(made.places is not None)
    (own if made.sharded else same)["number of rows"] = float(made.rows)
    if asks and not made.sharded:
        shared = {place: made.inputs[_c.INPUTS.index(place)] for place in ("a_s", "a_t", *_c.INPUTS[OPERANDS:])}
        own.update(say_sums(names, shared))
    return same, own


_LABELS = "least label", "largest label"


def _label_range(made: Prepared) -> Tuple[float, float]:
    """Of labels that are not ignored; (0, 0) where there are none."""
    labels = made.inputs[_c.LABELS_AT]
    counted = None if labels is None else labels[labels != made.options[IGNORE_INDEX]]
    return (0.0, 0.0) if counted is None or not counted.numel() else tuple(float(x) for x in counted.aminmax())


def _check_label_range(table: Table, columns: int) -> None:
    for rank, each in enumerate(zip(*[table[name] for name in _LABELS])):
        for label in each:
            if not 0 <= label < max(columns, 1):
                rule = f"it must be a token of the whole vocabulary, 0 to {columns - 1}, or ignore_index"
                raise bad(f"labels of rank {rank}", int(label), rule)


def _shard(group: Group, made: Prepared, table: Table, asked: bool) -> Shard:
    """What follows from what the ranks said: the same on every rank, also if it is an error."""
    lengths_s, lengths_t = ([int(n) for n in table[f"columns of b_{side}"]] for side in "st")
    counts, masks = [int(n) for n in table["number of rows"]], global_masks(made.options)
    given = made.options[COLUMNS] or None
    if made.use == _c.LINEAR:
        runs, columns = runs_in_order(lengths_s), check_same_ids(lengths_s, lengths_t, given)
    else:
        runs = _all_runs(group, made, table, lengths_s, asked)
        columns = sum(lengths_s) if given is None else given
        if columns > sum(lengths_s):
            raise bad("columns", columns, f"it must be at most {sum(lengths_s)}, the keys of all ranks together")
    moved = any(table["keys in another order"])
    positions = _positions(group, made, counts, runs, moved) if masks.by_position else None
    labels = made.inputs[_c.LABELS_AT] is not None
    if labels:
        _check_label_range(table, columns)
    told = any(name not in _LSES for name in made.names)
    travel = asked and made.sharded and not labels and not told
    if travel:
        total = sum(counts)
        travel = columns_should_travel(made.inputs, total, columns, group.size, made.options, made.need)
    mean = not made.by_row and made.options[REDUCTION] == _c.MEAN
    options = local_options(made.options)
    if travel:  # the engine sees a rank's own rows: what it makes of them is summed over the ranks
        options = with_fields(options, reduction=_c.SUM)
    # Not where a rank's engine may refuse the call after the others have begun it, for want of memory.
    limits = table["workspace_limit"]
    if (labels or told) and any(limits):
        what = "labels" if labels else "details"
        raise bad(
            "workspace_limit", int(max(limits)), f"with {what} over a process group it must be None on every rank"
        )
    meets = 0
    if made.inputs[0].device.type == "cpu" and not travel and not any(limits):
        rows = sum(counts) if made.sharded else counts[0]
        meets = _rows_of_meetings(made, rows, max(held(many, columns) for many in runs))
    return Shard(group, options, masks, mean, made.sharded, counts, runs, columns, positions, travel, meets)


# Logits that are kept while states travel, and multiplications and additions that are worth an exchange of attention's: what
# is saved by four products instead of six, against some 0.2 ms of latency (measured: even at 3e7).
_KEPT, _WORTH = 1 << 25, 4e7


def _rows_of_meetings(made: Prepared, rows: int, columns: int) -> int:
    """How many rows an exchange within the engine's call has at most; 0: there is none, logits are computed again. columns:
    the most that a rank has. The same on every rank."""
    if made.use == _c.LINEAR:
        return EXCHANGE_ROWS
    most = min(16 * 1024, max(EXCHANGE_ROWS, _KEPT // max(columns, 1)))  # a segment's rows meet, in so many at once
    widths = made.inputs[0].shape[-1] + made.inputs[3].shape[-1]
    worth = 2.0 * min(rows, most) * columns * widths >= _WORTH
    return most if worth and made.need and not made.by_row else 0


def _all_runs(group: Group, made: Prepared, table: Table, lengths: Sequence[int], asked: bool) -> List[Sequence[Run]]:
    """The runs of keys of every rank. If nobody was asked, those of the others are not known, and not needed."""
    if made.runs is None:
        return runs_in_order(lengths)
    if not asked:
        return [made.runs] * group.size
    most = int(max(table["runs"]))
    if most <= 1:
        runs: List[Sequence[Run]] = [[Run(int(start), n)] for start, n in zip(table["start"], lengths)]
    else:
        padded = [*made.runs, *[Run(0, 0)] * (most - len(made.runs))]
        sent = torch.tensor(padded, dtype=torch.int64, device=made.inputs[0].device)
        runs = [[Run(*run) for run in many] for many in group.gather(sent, "positions of keys").tolist()]
    check_cover(runs)
    return runs


def _positions(
    group: Group, made: Prepared, counts: Sequence[int], runs: Sequence[Sequence[Run]], moved: bool
) -> Tensor:
    """Where this rank's queries are: split as the keys are, which is rank after rank if nothing else was said. moved: some
    rank's keys do not ascend as it was given them."""
    device = made.inputs[0].device
    if not made.sharded:
        return torch.arange(counts[0], device=device)
    keys = [sum(run.length for run in many) for many in runs]
    in_order = [run for many in runs for run in many if run.length]
    if not moved and all(a.start + a.length == b.start for a, b in zip(in_order, in_order[1:])):
        first = sum(counts[: group.rank])
        return torch.arange(first, first + counts[group.rank], device=device)
    if list(counts) != keys:
        rule = f"with keys in another order than that of the ranks, a rank must have as many queries as keys, {keys}"
        raise bad("queries of the ranks", list(counts), rule + "; or say what each query sees by begin= and end=")
    if made.places is not None:
        return made.places.to(device)
    return torch.cat([torch.arange(run.start, run.start + run.length, device=device) for run in runs[group.rank]])


def _divergence(shard: Shard, made: Prepared) -> Tuple[Tensor, Dict[str, Tensor]]:
    """The loss as the reduction says, and the row results that are wanted, of this rank's rows."""
    rows = bits_of_call(made.names)
    names = names_of(rows)
    if made.need:
        function = ShardRows if made.by_row else ShardReduced
        loss, *found = function.apply(*made.inputs, shard, rows, made.need, made.wide)
        known = dict(zip(names, found))
    else:
        way = way_of(shard, made.inputs)
        loss, all_rows = way.value(rows | row_bits("loss"))
        loss = way.own_rows(all_rows["loss"]) if made.by_row else loss
        known = {name: way.own_rows(all_rows[name]) for name in names}
    weight = made.inputs[OPERANDS]
    if made.by_row and weight is not None:
        loss = loss * weight
    with torch.no_grad():
        known = {name: t.detach() for name, t in known.items()}
        return loss, told_of(shard, made.inputs, made.details, rows_told(shard, made.inputs, made.names, known))
