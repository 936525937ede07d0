"""Say what the method is, which reading was implemented, and which configurations were scored and timed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from longdecode.methods.registry import load_card
from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import Block, Cells, Listing, Prose, share_text
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.results import REFERENCE_METHOD
from longdecode.reporting.wording import short_tokens, slug


def method(inputs: PaperInputs) -> list[Block]:
    """Return paragraphs, readings, and where the card is."""
    words, name = inputs.words("method"), inputs.spec.method
    page = next((label for label in (name, *inputs.pages) if inputs.pages.get(label) == name), None)
    card = f"[method card](method-{slug(page)}.html)" if page else f"`methods/{name}/card.yaml`"
    found: list[Block] = [Prose(text) for text in words["text"]]
    if words.get("readings"):
        found += [Prose(f"{words['readings_title']}:"), Listing(words["readings"])]
    return [*found, Prose(words["card"].format(card=card))]


def configurations(inputs: PaperInputs) -> list[Block]:
    """Return one row for each model that was scored or timed: shares, knobs and budgets, so that nobody mixes them."""
    scored = [_scored(inputs, model) for model in inputs.compared_models()]
    speed, name = inputs.speed, inputs.spec.method
    models = [] if speed is None else [m for m in speed.models if name in set(speed.ok(m)["label"])]
    timed = [_timed(inputs, speed.ok(model), model) for model in models] if speed is not None else []
    rows = [row for row in (*scored, *timed) if row]
    if not rows:
        return []
    words = inputs.words("method")
    alike = [row[0] for row in timed if any(row[2:-1] == other[2:-1] for other in scored)]
    text = words["alike"].format(models=wording.listing(alike)) if alike else ""
    text = f"{words['differ']} {text}" if scored and len(alike) < len(timed) else text
    heads = ("Model", "Measured", "Reads everything", *words["knobs"], "Budgets")
    table = Cells(words["configurations"], heads, rows)
    return [Prose(text), table] if text else [table]


def note(inputs: PaperInputs) -> list[Block]:
    """Return a reminder that quality and speed are of different configurations, for parts that show one of them."""
    blocks = configurations(inputs)
    return [Prose(f"{blocks[0].text} [See the table](#method).")] if blocks and isinstance(blocks[0], Prose) else []


def _scored(inputs: PaperInputs, model: str) -> Sequence[str]:
    """Return the share of heads that ignore the budget from counted reads, and the knobs, of the method's own label."""
    label = inputs.label(inputs.spec.method, model) or ""
    table = inputs.results.summary
    table = table[(table["model"] == model) & (table["status"] == "ok") & table["suite"].isin(inputs.spec.suites)]
    ours = table[table["method"] == label]
    full = table[table["kind"] == REFERENCE_METHOD].set_index(["suite", "task", "context"])["kv_tokens_read"]
    joined = ours.join(full.rename("all"), on=["suite", "task", "context"])
    dense = (joined["kv_tokens_read"] - joined["kv_tokens_read_sparse"]) / (
        joined["all"] - joined["kv_tokens_read_sparse"]
    )
    budgets = sorted(set(ours["budget"]), key=wording.budget_order)
    return [model, "quality", _share(dense.median()), *_knobs(inputs, inputs.params(label, model)), _budgets(budgets)]


def _timed(inputs: PaperInputs, rows: pd.DataFrame, model: str) -> Sequence[str]:
    """Return the same of a timed model; the share is the growth of its bytes with the context over that of Full's."""
    rows = rows[(rows["batch"] == rows["batch"].min()) & rows["bytes_min"].notna()]
    ours, full = (rows[rows["label"] == label].set_index("context") for label in (inputs.spec.method, REFERENCE_METHOD))
    budgets = sorted(set(ours["budget"]), key=wording.budget_order)
    ours = ours[ours["budget"] == budgets[-1]]
    ends = sorted(set(ours.index) & set(full.index))[-2:]
    growth = [float(table.loc[ends[-1], "bytes_min"] - table.loc[ends[0], "bytes_min"]) for table in (ours, full)]
    share = growth[0] / growth[1] if len(ends) > 1 else float("nan")
    listed = 0.0 if budgets[-1].isdigit() else float(budgets[-1])
    share = (share - listed) / (1 - listed)
    at = f" ({share_text(int(budgets[-1]) / ends[-1])} of {short_tokens(ends[-1])})" if budgets[-1].isdigit() else ""
    params = json.loads(ours["params"].iloc[0])
    return [model, "speed", _share(share), *_knobs(inputs, params), _budgets(budgets) + at]


def _knobs(inputs: PaperInputs, params: Mapping[str, Any]) -> list[str]:
    """Return the values of the knobs that the page names, the card's defaults where a run set none."""
    defaults = {knob.name: knob.default for knob in load_card(inputs.spec.method).knobs}
    return [str(params.get(knob, defaults.get(knob))) for knob in inputs.words("method")["knobs"].values()]


def _share(value: float) -> str:
    return wording.DASH if pd.isna(value) else f"{wording.number(100 * value, 0)}{wording.NARROW}% of KV heads"


def _budgets(budgets: Sequence[str]) -> str:
    return wording.listing([wording.budget(text) for text in budgets])
