# SPDX-License-Identifier: Apache-2.0
"""streamkl.compare: the reference once, then each candidate beside what it left. One model in memory at a time."""

from __future__ import annotations

import contextlib
import json
import pathlib
import tempfile
from typing import Any, Dict, List, Optional, Union

import numpy as np
import torch

from .. import hf
from .._checks import bad
from . import models, windows
from .attention import summary
from .models import Source, short, source
from .report import Report, Tokens, assemble, describe
from .rows import Side, not_finite, on_cpu, token_rows
from .states import Reference, batches, check_vocabulary, forward, run_other, run_reference, tokens_of, worst_of
from .statistics import RESAMPLES
from .store import Store

BATCH = 4096  # tokens that run through a model at once, unless a window is longer
AGAIN = 1024  # tokens of a floor in the same dtype, which is mostly 0
CONTEXT = 48  # tokens that are shown before a worst one
Path = Union[str, pathlib.Path]


def compare(
    reference: Any,
    *others: Any,
    text: Union[str, pathlib.Path, None] = None,
    tokenizer: Any = None,
    window: Optional[int] = None,
    limit: Optional[int] = None,
    second_half: bool = False,
    batch: Optional[int] = None,
    dtype: Union[str, torch.dtype, None] = None,
    attention: int = 2,
    floor: int = 4096,
    worst: int = 20,
    save_states: Optional[Path] = None,
    resume: Optional[Path] = None,
    device: str = "cpu",
    progress: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Optional[Report]:
    """How far other models are from a reference over a text: a Report.

    reference, others: folders that transformers loads, "FOLDER:bf16", "FOLDER:int8", "FOLDER:int4", or models. The
        reference may be a file of save_states: then no text, and no reference model.
    text: the text itself, or a pathlib.Path of a file. tokenizer: needed if the reference is a model and not a folder.
    window: tokens of a window; None is 2048, or the models' positions if there are fewer. limit: at most about so many
        tokens. second_half: score the second half of each window only, as llama.cpp. batch: windows at once.
    dtype: "f32", "bf16" or "f16" for all folders without one of their own; None is what is stored.
    attention: of so many windows; floor: over so many tokens (0: neither). worst: so many tokens are shown.
    save_states: a file for the reference's states, for later. resume: a folder where a run that was cut goes on.
    resamples, seed: of the bootstrap.

    Without others and with save_states, the file is all there is to make, and None is returned.
    """
    dtype = _dtype(dtype)
    for name, value, least in (
        ("batch", batch, 1),
        ("attention", attention, 0),
        ("floor", floor, 0),
        ("worst", worst, 0),
    ):
        if value is not None and value < least:
            raise bad(name, value, f"it must be at least {least}")
    if seed < 0:
        raise bad("seed", seed, "it must be at least 0")
    _check_places(device, save_states, resume)
    found = [source(other, dtype) for other in others]
    if not found and save_states is None:
        raise bad("others", (), "there must be a model to compare with the reference, or save_states")
    with contextlib.ExitStack() as stack:
        folder = (
            pathlib.Path(resume)
            if resume is not None
            else pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        )
        bar = stack.enter_context(_Bar(progress))
        options = dict(text=text, tokenizer=tokenizer, window=window, limit=limit, second_half=second_half, batch=batch)
        extent = dict(attention=attention, floor=floor, device=device, resuming=resume is not None)
        path = pathlib.Path(save_states) if save_states is not None else folder / "reference.safetensors"
        ready, tokenizer = _reference(reference, found, dtype, path, options, extent, bar)
        if not found:
            return None
        parts, tokens = [], {}
        names = _distinct([ready.about["reference"]["name"]] + [s.name for s in found], [None, *found])[1:]
        for name, other in zip(names, found):
            store = Store(
                folder / f"other-{len(parts)}.safetensors",
                {"name": name, "key": _key(ready, other)},
                resume is not None,
            )
            with other.loaded(device) as model:
                bar.start(name, len(ready.windows.ids))
                run_other(store, model, ready, worst, bar.tick)
                info = _info(name, other, model)
            tokens[name] = tokens_of(store, ready)
            parts.append(_part(info, other, store, ready, tokens[name], tokenizer, worst, resamples, seed))
        return assemble(ready.about["reference"], ready.about["text"], parts, tokens, resamples=resamples, seed=seed)


def _dtype(given: Any) -> Optional[torch.dtype]:
    if given is None or isinstance(given, torch.dtype):
        return given
    if given not in models.DTYPES:
        raise bad("dtype", given, "it must be f32, bf16 or f16")
    return models.DTYPES[given]


def _check_places(device: str, save_states: Optional[Path], resume: Optional[Path]) -> None:
    """Before anything is loaded."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise bad("device", device, f"torch cannot use it ({str(error).splitlines()[0]})") from None
    if save_states is not None and pathlib.Path(save_states).suffix != ".safetensors":
        raise bad("save_states", str(save_states), "its name must end in .safetensors, by which it is known later")
    if resume is not None and pathlib.Path(resume).is_file():
        raise bad("resume", str(resume), "it is a file, and must be a folder")


def _info(name: str, of: Source, model: Any) -> Dict[str, Any]:
    return {
        "name": name,
        "path": str(of.path) if of.path else None,
        "variant": f"int{of.bits}" if of.bits else None,
        "dtype": short(of.runs_in),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def _key(ready: Reference, other: Source) -> str:
    return json.dumps([ready.about["key"], other.key()])


def _distinct(names: List[str], of: List[Optional[Source]]) -> List[str]:
    """Names that are told apart: by the folder above where the last part is the same, by a number where all is."""
    found: List[str] = []
    for name, model in zip(names, of):
        if names.count(name) > 1 and model is not None and model.path is not None:
            name = f"{model.path.resolve().parent.name}/{name}"
        wanted, again = name, 2
        while name in found:
            name, again = f"{wanted} ({again})", again + 1
        found.append(name)
    return found


def _reference(
    given: Any, others: List[Source], dtype: Optional[torch.dtype], path: pathlib.Path, options: Dict[str, Any],
    extent: Dict[str, Any], bar: "_Bar",
) -> tuple:  # fmt: skip
    """The reference's states, read or made, and the tokenizer that shows tokens."""
    if isinstance(given, (str, pathlib.Path)) and str(given).endswith(".safetensors"):
        if not pathlib.Path(given).is_file():
            raise bad("reference", str(given), "there is no such file")
        for name in ("text", "window", "limit"):
            if options[name] is not None:
                raise bad(name, str(options[name]), f"{given} holds the tokens of its own text")
        ready = Reference(Store(given))
        tokenizer = _same_tokenizers(
            ready.about["reference"]["name"], ready.about["words"], options["tokenizer"], others
        )
        return ready, tokenizer
    if options["text"] is None:
        raise bad("text", None, "a text to compare the models over is needed")
    own = source(given, dtype)
    tokenizer = options["tokenizer"] or models.tokenizer_of(own)
    if tokenizer is None:
        where = str(own.path) if own.path else own.name
        raise bad("reference", where, "there is no tokenizer in it" if own.path else "a model needs tokenizer=")
    words = models.words_key(tokenizer)
    _same_tokenizers(own.name, words, tokenizer, others)
    for other in others:  # before anything runs; checked by the heads themselves afterwards
        sizes = [s.config.get_text_config(decoder=True).vocab_size for s in (own, other)]
        check_vocabulary(own.name, sizes[0], other.name, sizes[1])
    positions = [s.positions for s in (own, *others)]
    cut = windows.cut(
        options["text"], tokenizer, options["window"], positions, options["limit"], options["second_half"]
    )
    batch = options["batch"] or max(1, BATCH // cut.ids.shape[1])
    key = json.dumps([own.key(), cut.about, words, batch, extent["attention"]])
    if extent["resuming"] and (own.given is not None or any(o.given is not None for o in others)):
        raise bad("resume", True, "models must be folders then: one in memory may be another one the next time")
    store = Store(path, {"key": key}, keep=extent["resuming"])
    if not store.about.get("complete"):
        with own.loaded(extent["device"]) as model:
            bar.start(own.name, len(cut.ids))
            about = {"reference": _info(own.name, own, model), "text": cut.about, "words": words}
            run_reference(store, model, cut, about, batch, extent["attention"], bar.tick)
        store.note(reference=dict(store.about["reference"], vocabulary=store.about["head"]["columns"]))
    ready = Reference(store)
    _floors(store, ready, own, others, extent, bar)
    return ready, tokenizer


def _same_tokenizers(name: str, words: str, tokenizer: Any, others: List[Source]) -> Any:
    """Refuses a candidate with another tokenizer. One that has none is taken to have the reference's."""
    for other in others:
        own = models.tokenizer_of(other)
        if own is None:
            continue
        if models.words_key(own) != words:
            raise bad(
                "model", other.name, f"its tokenizer is another one than that of {name}{_difference(tokenizer, own)}"
            )
        tokenizer = tokenizer or own
    return tokenizer


def _difference(a: Any, b: Any) -> str:
    if a is None:
        return ""
    one, two = ({i: word for word, i in t.get_vocab().items()} for t in (a, b))
    if len(one) != len(two):
        return f": {len(two):,} tokens instead of {len(one):,}"
    i = next(i for i in sorted(one) if one[i] != two.get(i))
    return f": token {i} is {two.get(i)!r} and not {one[i]!r}"


def _floors(
    store: Store, ready: Reference, own: Source, others: List[Source], extent: Dict[str, Any], bar: "_Bar"
) -> None:
    """What rounding alone does: the reference against itself, in the dtype of each candidate. Kept in the file."""
    if not extent["floor"]:
        return
    wanted = {other.runs_in for other in others} or {torch.float32, torch.bfloat16, torch.float16}
    for dtype in sorted(wanted, key=str):
        floors = store.about.get("floors", {})
        if short(dtype) in floors:
            continue
        same = dtype == own.runs_in
        extent_here = min(extent["floor"], AGAIN) if same else extent["floor"]
        some = max(1, -(-extent_here // ready.windows.scored))
        how = "the reference run again, window by window," if same else f"the reference itself in {short(dtype)}"
        with own.loaded(extent["device"], None if same else dtype) as model:
            bar.start(f"floor {short(dtype)}", min(some, len(ready.windows.ids)))
            found = _floor(ready, model, some, same, bar)
        store.note(floors={**floors, short(dtype): dict(found, dtype=short(dtype), how=how) if found else None})


def _floor(ready: Reference, model: Any, some: int, alone: bool, bar: "_Bar") -> Optional[Dict[str, Any]]:
    head = on_cpu(hf.head(model))
    kls, same = [], []
    cut = ready.windows._replace(ids=ready.windows.ids[:some])
    for i in range(batches(cut, ready.batch)):
        count = len(cut.ids[i * ready.batch : (i + 1) * ready.batch])
        if alone:
            hidden = torch.cat([forward(model, cut, 1, i * ready.batch + j) for j in range(count)])
        else:
            hidden = forward(model, cut, ready.batch, i)
        n = len(hidden)
        rows = token_rows(Side(ready.hidden(i)[:n], ready.head), Side(hidden, head), ready.labels(i)[:n])
        good = ~not_finite(rows)["either"]
        kls.append(rows["kl"][good])
        same.append((rows["top1_ref"] == rows["top1_other"])[good])
        bar.tick(count)
    kl = np.concatenate(kls).astype(np.float64)
    if not len(kl):
        return None
    return {
        "mean_kld": float(kl.mean()),
        "median_kld": float(np.median(kl)),
        "p99_kld": float(np.quantile(kl, 0.99)),
        "max_kld": float(kl.max()),
        "same_top_p": float(np.concatenate(same).mean()),
        "tokens": len(kl),
    }


def _part(
    info: Dict[str, Any], other: Source, store: Store, ready: Reference, tokens: Tokens, tokenizer: Any, worst: int,
    resamples: int, seed: int,
) -> Dict[str, Any]:  # fmt: skip
    """A candidate's part of the report."""
    floor = ready.about.get("floors", {}).get(short(other.runs_in))
    found = describe(info, tokens, resamples=resamples, seed=seed, floor=floor)
    found["worst"] = [_shown(w, ready, tokens, tokenizer) for w in worst_of(store, ready, tokens, worst)]
    trouble = store.about.get("attention_missing") or ready.about.get("attention_missing")
    seen = store.about.get("attention")
    if trouble:
        found["attention"] = {"missing": trouble}
    elif seen:
        found["attention"] = summary(list(seen.values()))
    else:
        found["attention"] = None
    return found


def _shown(w: Dict[str, Any], ready: Reference, tokens: Tokens, tokenizer: Any) -> Dict[str, Any]:
    row = w.pop("row")
    sequence, position = int(tokens.sequence[row]), int(tokens.position[row])
    ids = ready.windows.ids[sequence]
    for side in ("top_reference", "top_other"):
        w[side] = [{"id": i, "text": word(tokenizer, i), "p": p} for i, p in w[side]]
    return {
        "sequence": sequence,
        "position": position,
        "kld": w["kld"],
        "before": _decoded(tokenizer, ids[max(0, position - CONTEXT) : position].tolist()),
        "token": word(tokenizer, int(ids[position])),
        "p_reference": float(np.exp(tokens.rows["logprob_ref"][row])),
        "p_other": float(np.exp(tokens.rows["logprob_other"][row])),
        "top_reference": w["top_reference"],
        "top_other": w["top_other"],
    }


def _decoded(tokenizer: Any, ids: List[int]) -> str:
    return tokenizer.decode(ids) if tokenizer is not None else " ".join(f"⟨{i}⟩" for i in ids)


def word(tokenizer: Any, i: int) -> str:
    """One token as text, with the blank before it where it has one."""
    if tokenizer is None:
        return f"⟨{i}⟩"
    piece = tokenizer.convert_ids_to_tokens(i)
    if isinstance(piece, str) and piece.startswith("▁"):  # SentencePiece, whose decoder drops a first blank
        return piece.replace("▁", " ")
    return tokenizer.decode([i])


class _Bar:
    """A progress bar, if wanted: one for each model, in windows."""

    def __init__(self, shown: bool) -> None:
        self.shown, self.bar = shown, None

    def __enter__(self) -> "_Bar":
        return self

    def start(self, name: str, windows: int) -> None:
        self.__exit__()
        if self.shown:
            from tqdm import tqdm

            self.bar = tqdm(total=windows, desc=name, unit="window", dynamic_ncols=True)

    def tick(self, n: int) -> None:
        if self.bar is not None:
            self.bar.update(n)

    def __exit__(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None
