# SPDX-License-Identifier: Apache-2.0
"""The options of a call: every argument that is not an array. This file is the one place that lists them.

The classes AttentionOptions, LinearOptions and so on are the table. A line of it is what a type checker knows of the
option, its default, its type among the arguments of the torch operators, and the function that turns what people write
into the number that C takes. The calls for torch and for NumPy and the modules take **options of one of these classes.
From the table come their signatures (show_options), the schema of the torch operators (SCHEMA), and what is packed into
struct skl_problem (FIELDS, by the names in _c.py).

To add an option: its field in _c.PROBLEM, its line here, its words in docs/python.md.
"""

# No "from __future__ import annotations" here: the annotations of the table are objects that this file reads.
import difflib
import inspect
from typing import (
    Annotated,
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Tuple,
    TypedDict,
    TypeVar,
    get_type_hints,
)

from . import _c
from . import _checks as check
from ._checks import bad

NAMES = {
    _c.ATTENTION: "attention_kl",
    _c.LINEAR: "linear_kl",
    _c.INDEXER: "indexer_kl",
    _c.LISTED: "linear_topk_kl",
    _c.CROSS_ENTROPY: "linear_cross_entropy",
}


# ---- the table


class Option(NamedTuple):
    default: object  # as people write it
    schema: str  # its type among the arguments of the torch operators
    check: Callable[[str, Any], Any]
    fields: Tuple[str, ...] = ()  # of struct skl_problem, with a check that returns as many; (): the option's name


class _EveryOptions(TypedDict, total=False):
    """What every loss has."""

    reduction: Annotated[str, Option("mean", "int", check.reduction)]
    columns: Annotated[Optional[int], Option(None, "SymInt", check.columns)]
    threads: Annotated[int, Option(0, "int", check.threads)]
    isa: Annotated[Optional[str], Option(None, "int", check.isa)]
    workspace_limit: Annotated[Optional[int], Option(None, "int", check.memory)]
    skip_below: Annotated[float, Option(0.0, "float", check.share)]
    split_f32: Annotated[Optional[bool], Option(None, "int", check.split)]
    round_dz: Annotated[bool, Option(False, "bool", check.flag)]


class _Options(_EveryOptions, total=False):
    """What the losses between a student and a teacher have."""

    scale_s: Annotated[Optional[float], Option(None, "float", check.scale)]
    softcap_s: Annotated[Optional[float], Option(None, "float", check.softcap)]


class _LiveOptions(_Options, total=False):
    """What the losses with a live teacher have."""

    divergence: Annotated[str, Option("forward", "int", check.divergence)]
    beta: Annotated[Optional[float], Option(None, "float", check.beta)]
    skew: Annotated[Optional[float], Option(None, "float", check.of_divergence)]
    alpha: Annotated[Optional[float], Option(None, "float", check.of_divergence)]
    scale_t: Annotated[Optional[float], Option(None, "float", check.scale)]
    softcap_t: Annotated[Optional[float], Option(None, "float", check.softcap)]
    any_order: Annotated[bool, Option(False, "bool", check.flag)]


class AttentionOptions(_LiveOptions, total=False):
    causal: Annotated[bool, Option(False, "bool", check.flag)]
    window: Annotated[Optional[Tuple[int, int]], Option(None, "SymInt", check.window, ("window_left", "window_right"))]
    mix_t: Annotated[Optional[int], Option(None, "int", check.heads)]
    normalise_t: Annotated[bool, Option(True, "bool", check.unless, ("raw_t",))]
    support_block: Annotated[Optional[int], Option(None, "SymInt", check.block)]


class IndexerOptions(AttentionOptions, total=False):
    relu: Annotated[bool, Option(True, "bool", check.unless, ("identity",))]


class _OwnLabelOptions(TypedDict, total=False):
    """What cross-entropy has."""

    ignore_index: Annotated[int, Option(-100, "int", check.index)]
    num_items: Annotated[Optional[float], Option(None, "float", check.items)]
    label_smoothing: Annotated[float, Option(0.0, "float", check.share)]
    z_loss: Annotated[float, Option(0.0, "float", check.finite)]


class _LabelOptions(_OwnLabelOptions, total=False):
    """What the losses over a vocabulary have."""

    temperature: Annotated[float, Option(1.0, "float", check.positive)]
    label_weight: Annotated[float, Option(0.0, "float", check.finite)]
    kl_weight: Annotated[float, Option(1.0, "float", check.finite)]
    lse_weight: Annotated[float, Option(0.0, "float", check.finite)]


class LinearOptions(_LiveOptions, _LabelOptions, total=False):
    pass


class ListedOptions(_Options, _LabelOptions, total=False):
    tail: Annotated[str, Option("bucket", "int", check.tail)]
    divergence: Annotated[str, Option("forward", "int", check.direction)]
    stored_temperature: Annotated[float, Option(1.0, "float", check.positive)]


class CrossEntropyOptions(_EveryOptions, _OwnLabelOptions, total=False):
    """Of linear_cross_entropy, which has one side."""

    scale: Annotated[Optional[float], Option(None, "float", check.own_scale, ("scale_s",))]
    softcap: Annotated[Optional[float], Option(None, "float", check.own_softcap, ("softcap_s",))]


# ---- what is derived from it


def _hints(kind: type) -> Dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


_KINDS = {
    _c.ATTENTION: AttentionOptions,
    _c.LINEAR: LinearOptions,
    _c.INDEXER: IndexerOptions,
    _c.LISTED: ListedOptions,
    _c.CROSS_ENTROPY: CrossEntropyOptions,
}
_TABLES: Dict[int, Dict[str, Option]] = {
    use: {name: hint.__metadata__[0] for name, hint in _hints(kind).items()} for use, kind in _KINDS.items()
}
_TYPES = {
    field: option.schema
    for table in _TABLES.values()
    for name, option in table.items()
    for field in option.fields or (name,)
}
_TYPES.update(pool_block="SymInt", pool="int")  # of pooled_attention_kl alone: make_options() takes them by themselves
# The options as they go to the torch operators and to C: one number for each of these fields, in C's order.
FIELDS: List[str] = [
    name for name in (*_c.PROBLEM.names, *_c.LABELS.names, *_c.LISTED_TEACHER.names) if name == "use" or name in _TYPES
]
SCHEMA = ", ".join(f"{_TYPES.get(name, 'int')} {name}" for name in FIELDS)
Options = Tuple[Any, ...]  # the values of FIELDS
USE, DIVERGENCE, COLUMNS, THREADS, TEMPERATURE, IGNORE_INDEX, TAIL = (
    FIELDS.index(name) for name in ("use", "divergence", "columns", "threads", "temperature", "ignore_index", "tail")
)


def _place(name: str, option: Option):
    """The index of the option in FIELDS, or the slice if it has several."""
    first = FIELDS.index((option.fields or (name,))[0])
    return slice(first, first + len(option.fields)) if option.fields else first


_PLACES = {use: {name: (_place(name, x), x.check) for name, x in table.items()} for use, table in _TABLES.items()}


def _defaults(use: int) -> Options:
    made: List[Any] = [0] * len(FIELDS)
    made[USE] = _c.LINEAR if use in (_c.LISTED, _c.CROSS_ENTROPY) else use
    for table in _TABLES.values():  # also the other loss's options: C wants a number for every field
        for name, option in table.items():
            made[_place(name, option)] = option.check(name, option.default)
    return tuple(made)


_DEFAULTS = {use: _defaults(use) for use in _KINDS}


def pooling(block: object, pool: object) -> Dict[str, int]:
    """The fields of pooled keys."""
    number = check.whole("block", block, "it must be a number of keys")
    if not 1 <= number < 2**31:
        raise bad("block", block, "it must be at least 1")
    return {"pool_block": number, "pool": _c.POOLS.index(check.choice("pool", pool, _c.POOLS))}


def cross_entropy_as_linear(given: Mapping[str, Any]) -> Dict[str, Any]:
    """linear_cross_entropy's options as those of a linear_kl without a teacher."""
    table = _TABLES[_c.CROSS_ENTROPY]
    names = {name: table[name].fields[0] if name in table and table[name].fields else name for name in given}
    return {"label_weight": 1.0, **{names[name]: value for name, value in given.items()}}


def make_options(use: int, given: Mapping[str, Any], **fields: float) -> Options:
    """The values of FIELDS, from options as people write them, and fields that are no options. What is not given costs
    nothing."""
    if fields:
        made = list(make_options(use, given))
        for name, value in fields.items():
            made[FIELDS.index(name)] = value
        return tuple(made)
    if not given:
        return _DEFAULTS[use]
    made, places = list(_DEFAULTS[use]), _PLACES[use]
    for name, value in given.items():
        if name not in places:
            raise _unknown(use, name)
        place, check = places[name]
        made[place] = check(name, value)
    _settle(made, given)
    return tuple(made)


# The numbers that only some divergences have.
_NUMBERS = {"beta": ("jsd", "alpha_beta"), "skew": ("skew_forward", "skew_reverse"), "alpha": ("alpha_beta",)}


def _settle(made: List[Any], given: Mapping[str, Any]) -> None:
    """Checks the numbers of the divergence. A JSD with beta 0 or 1 is forward or reverse KL, as in Liger and TRL."""
    divergence = given.get("divergence", "forward")
    if divergence == "reverse" and given.get("tail") in ("zero", "teacher"):
        raise bad(
            "divergence", divergence, f"tail={given['tail']!r} makes a reverse KL infinite: 'forward', or another tail"
        )
    for name, owners in _NUMBERS.items():
        if given.get(name) is not None and divergence not in owners:
            rule = f"only divergence={' and '.join(repr(owner) for owner in owners)} {'has' if len(owners) == 1 else 'have'} {name}"
            raise bad(name, given[name], rule)
    if divergence == "alpha_beta":
        for name in ("alpha", "beta"):
            if given.get(name) is None:
                raise bad(name, None, "divergence='alpha_beta' needs alpha and beta")
            if not 0 <= made[FIELDS.index(name)] <= 16:
                raise bad(name, given[name], "it must be from 0 to 16")
        if not given["alpha"] + given["beta"] >= 1e-3:
            raise bad("beta", given["beta"], "alpha + beta must be at least 0.001")
    elif divergence == "jsd":
        beta = made[FIELDS.index("beta")]
        if not 0 <= beta <= 1:
            raise bad("beta", given["beta"], "it must be from 0 (forward KL) to 1 (reverse KL)")
        if beta in (0, 1):
            made[DIVERGENCE], made[FIELDS.index("beta")] = _c.DIVERGENCES["reverse" if beta else "forward"], 0.5
    elif given.get("skew") is not None and not 0 < made[FIELDS.index("skew")] < 1:
        raise bad("skew", given["skew"], "it must be strictly between 0 and 1")


# What people reach for who come from other libraries, and what there is.
_MASKS = "weight= masks queries ([B, N] or [B, H, N]), begin= and end= say which keys a query sees"
_INSTEAD = {
    "labels": "labels= takes the ids of the tokens",  # under its other names
    "mask": "weight= takes a bool mask over the tokens",
    "cu_seqlens": "packed tokens need no boundaries here: every token has a row of its own",
    "scale": "each side has its own, scale_s= and scale_t=",
    "softcap": "each side has its own, softcap_s= and softcap_t=",
    "bias": "each side has its own, bias_s= and bias_t=",
    "chunk_size": "memory does not depend on one",
}
_INSTEAD_ATTENTION = {
    **_INSTEAD,
    "labels": "weight= takes a bool mask over the queries",
    "ignore_index": "weight= takes a bool mask over the queries",
    "mask": _MASKS,
    "cu_seqlens": "packed sequences are cu_seqlens_q= and cu_seqlens_k=",
    "temperature": "divide scale_s= and scale_t= by it",
    "is_causal": "causal=True",
    "window_size": "window=(left, right)",
    "sliding_window": "a window of w keys is window=(w - 1, -1), with causal=True",
    "head_mask": "a weight= of [1, H, 1] leaves heads out",
    "dropout": "the distributions before dropout are compared",
    "enable_gqa": "grouped heads need no word, k_s and k_t may have fewer heads than the queries",
    "attn_bias": "logits are products of queries and keys, with a scale and a softcap; there is no bias",
}
_ALIASES = {
    "attention_mask": "mask", "attn_mask": "mask", "key_padding_mask": "mask", "padding_mask": "mask",
    "shift_labels": "labels", "target": "labels", "targets": "labels",
    "softmax_scale": "scale", "scaling": "scale", "logit_softcapping": "softcap",
    "dropout_p": "dropout", "position_bias": "attn_bias", "alibi_slopes": "attn_bias",
}  # fmt: skip
# What belongs to a call beside its options, and not to the constructor of a module.
_OF_CALLS = {
    _c.ATTENTION: (
        *("weight", "begin", "end", "cu_seqlens_q", "cu_seqlens_k", "return_lse", "lse_t", "head_map", "support"),
        *("sink_s", "sink_t", "sink", "details"),
    ),
    _c.INDEXER: ("weight", "begin", "end", "cu_seqlens_q", "cu_seqlens_k", "lse_t", "support", "sink_t", "details"),
    _c.LINEAR: ("weight", "bias_s", "bias_t", "return_lse", "labels", "details", "mass_ids", "teachers"),
    _c.LISTED: ("weight", "bias_s", "labels", "details", "mass_ids", "tail_logprob"),
    _c.CROSS_ENTROPY: ("weight", "bias", "details", "mass_ids"),
}


def _hint(use: int, name: str) -> str:
    instead = _INSTEAD_ATTENTION if use in (_c.ATTENTION, _c.INDEXER) else _INSTEAD
    key = "cu_seqlens" if name.startswith("cu_seqlens") else _ALIASES.get(name, name)
    if key in instead:
        return f": {instead[key]}"
    for other in (_c.LINEAR, _c.ATTENTION, _c.LISTED):
        if other != use and (name in _TABLES[other] or name in _OF_CALLS[other]):
            return f": {NAMES[other]} has one"
    near = difflib.get_close_matches(name, [*_TABLES[use], *_OF_CALLS[use]], 1)
    return f": did you mean {near[0]}=?" if near else ""


def _unknown(use: int, name: str) -> Exception:
    if name in _OF_CALLS[use]:  # of the loss, but not of the call that was made
        return TypeError(f"streamkl: cannot use {name}= here: it is an argument of {NAMES[use]} and of a module's call")
    return TypeError(f"streamkl: cannot use {name}=: {NAMES[use]} has no such argument{_hint(use, name)}")


def refuse_in_call(use: int, module: str, given: Mapping[str, Any]) -> None:
    """For the call of a module, which takes tensors and no option."""
    for name in given:
        if name in _TABLES[use]:
            raise TypeError(
                f"streamkl: cannot use {name}= in a call: options go to the constructor, {module}({name}=..)"
            )
        raise _unknown(use, name)


Function = TypeVar("Function", bound=Callable[..., Any])


def show_options(use: int, *without: str) -> Callable[[Function], Function]:
    """A decorator for a function that takes **options: help() and inspect show them one by one, with their defaults, but
    for those that it has itself, also under another name."""

    def show(function: Function) -> Function:
        shown = inspect.signature(function)
        own = [p for p in shown.parameters.values() if p.kind is not p.VAR_KEYWORD]
        hints = _hints(_KINDS[use])
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=hint.__origin__)
            for (name, option), hint in zip(_TABLES[use].items(), hints.values())
            if name not in shown.parameters and name not in without
        ]
        setattr(function, "__signature__", shown.replace(parameters=[*own, *more]))  # noqa: B010
        return function

    return show
