"""Set the printed tables of other decoders, other checkpoints and the device's bounds beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from longdecode.evals.records import Record
from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import Block, Compared, Comparison, Prose, compared
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.printed import printed_only
from longdecode.reporting.papers.tokenswift.tables import compared_value
from longdecode.reporting.papers.tokenswift.texts import fulls, longest, value, written


def others(inputs: PaperInputs) -> list[Block]:
    """Return table 1 with our own versions of its decoders, and table 4, which needs other checkpoints."""
    words, published = inputs.words("others"), inputs.published
    rows = []
    for printed in published.rows("others"):
        figure = published.figure(
            "others", "speedup", **{name: printed[name] for name in published.tables["others"].keys}
        )
        of = [str(printed["method"]), str(printed["draft"]), f"{printed['generated']:,}"]
        rows.append(_other(inputs, of, figure, words))
    first = Comparison(words["caption"], ("Method", "Draft", "Generated"), rows, "times")
    qwen = printed_only(published, "qwen")
    unmeasured = [replace(row, reason=words["missing"]) for row in qwen.rows if not row.of[-1].endswith(" std")]
    table = replace(qwen, caption=words["qwen"], rows=unmeasured, fold=words["qwen"])
    return [Prose(words["text"]), first, table, inputs.missing(words["missing"], "qwen")]


def _other(inputs: PaperInputs, of: Sequence[str], figure: Any, words: Mapping[str, Any]) -> Compared:
    method, draft, _ = of
    if method == "triforce":
        found, reason = written(inputs.folder, label="triforce"), "triforce"
    elif draft == "standalone":
        return compared_value(of, figure, None, words["standalone"], inputs.results.confidence)
    else:
        found, reason = _self_drafts(inputs, words["self_drafts"]), "matrix"
    largest = max(written(inputs.folder), key=lambda r: r.measures["tokens"], default=None)
    here = [r for r in found if largest is not None and r.model == largest.model]
    least = int(of[2].replace(",", ""))
    own = max(_groups(here), key=lambda group: _speed(inputs, group, least), default=[])
    if not own:
        return compared_value(of, figure, None, words["missing_text"], inputs.results.confidence)
    first, past = own[0], _past(own, least)
    seen = value(own, fulls(inputs.folder), "speedup", past)
    told = {"label": first.label, "sampler": first.task, "model": first.model, "tokens": f"{past:,}"}
    told["prompt"] = f"{first.context:,}"
    return compared_value(of, figure, seen, words[reason].format(**told), inputs.results.confidence)


def _self_drafts(inputs: PaperInputs, names: Sequence[str]) -> list[Record]:
    """Return texts that a static cache drafted as a chain."""
    drafted = [r for r in written(inputs.folder, method="speculate") if "x" not in r.label.partition("+")[2]]
    return [r for r in drafted if str(r.params.get("drafter")) in names]


def _groups(records: Sequence[Record]) -> list[list[Record]]:
    found: dict[tuple[object, ...], list[Record]] = {}
    for r in records:
        found.setdefault((r.model, r.task, r.context, r.label, r.budget), []).append(r)
    return list(found.values())


def _past(own: Sequence[Record], least: int) -> int:
    """Return the first mark of the texts past ``least`` tokens: speed changes along a text."""
    marks = {
        int(name.split("_")[1]) for r in own for name in r.measures if name.startswith("at_") and name.endswith("_ms")
    }
    return min((mark for mark in marks if mark >= least), default=longest(own))


def _speed(inputs: PaperInputs, own: Sequence[Record], least: int) -> float:
    seen = value(own, fulls(inputs.folder), "speedup", _past(own, least))
    return seen.mean if seen else -1.0


def bound(inputs: PaperInputs) -> list[Block]:
    """Return table 2: read rate, weights and the time to read them, in print and on the device of this run."""
    words, speed = inputs.words("bound"), inputs.speed
    ceiling = None if speed is None else speed.ceiling()
    weights = None if speed is None else _weights_gb(inputs)
    load = weights / ceiling.gb_per_s * 1e3 if weights and ceiling else None
    rate, probe = (ceiling.gb_per_s, ceiling.probe) if ceiling else (None, wording.DASH)
    measured = {
        "memory bandwidth, GB/s": (rate, words["rate"].format(probe=probe)),
        "weights, GB": (weights, words["weights"]),
        "reading the weights, ms": (load, words["load"]),
        "arithmetic, ms": (None, words["arithmetic"]),
    }
    rows = []
    for printed in inputs.published.rows("bound"):
        seen, reason = measured[printed["quantity"]]
        figure = inputs.published.figure("bound", "value", quantity=printed["quantity"])
        of = [printed["quantity"]]
        if seen is None or figure is None:
            rows.append(compared(of, figure, reason=reason))
            continue
        shown = wording.number(seen, figure.digits)
        near = abs(seen / figure.value - 1) < 0.05
        verdict = "agree within 5 %" if near else "higher" if seen > figure.value else "lower"
        rows.append(compared(of, figure, shown, "", verdict, "shown" if near else "estimate", reason))
    caption = words["caption"].format(device=ceiling.device if ceiling else wording.DASH)
    return [Comparison(caption, ("Quantity",), rows)]


def _weights_gb(inputs: PaperInputs) -> float | None:
    """Return the weights that Full's step reads: what is left of its bytes at no context."""
    assert inputs.speed is not None
    table = inputs.speed.table
    steps = table[(table["bench"] == "decode") & (table["label"] == "full") & (table["stage"] == "step")]
    steps = steps[(steps["batch"] == 1) & steps["bytes_min"].notna()].drop_duplicates("context").sort_values("context")
    if len(steps) < 2:
        return None
    first, last = steps.iloc[0], steps.iloc[-1]
    slope = (last["bytes_min"] - first["bytes_min"]) / (last["context"] - first["context"])
    return float(first["bytes_min"] - slope * first["context"]) / 1e9
