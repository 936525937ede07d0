"""Show losses on books of forks and methods, along the continuation too, and the forms of the importance head."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from longdecode.reporting import wording
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import (
    Block,
    Compared,
    Comparison,
    Level,
    Picture,
    Prose,
    compared,
    p_text,
)
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.nosa.charts import along_figure
from longdecode.reporting.papers.nosa.forks import (
    BOOKS,
    Fork,
    Place,
    against,
    base_of,
    fork_of,
    forks,
    named,
    own_gap,
    places,
    records_of,
    samples,
    shown,
    untrained,
    with_reads,
)
from longdecode.reporting.papers.nosa.locality import mean_interval
from longdecode.reporting.results import REFERENCE_METHOD

_FROM = "loss_from_"
Own = Mapping[tuple[Fork, str], pairs.Scored]
"""Losses on the same books by fork and label."""


def books(inputs: PaperInputs) -> list[Block]:
    """Return each fork's loss on books minus the full fork's with full attention, and NOSA's fork minus the others."""
    words, blocks = inputs.words("books"), list[Block]()
    for place in places(inputs, BOOKS):
        base, full, own = own_losses(inputs, place)
        if base is None or not full:
            continue
        rows = [over_full(inputs, fork, label, found, base, full, place) for (fork, label), found in own.items()]
        rows += [minus(inputs, fork, label, own, place) for fork, label in own if is_other(inputs, fork, own)]
        if rows:
            caption = words["caption"].format(**_about(place, full))
            blocks.append(Comparison(caption, ("Fork", "Method", "Tokens read"), rows, "nats a token"))
            blocks += _along(inputs, base, place, full)
    return [Prose(words["text"]), *(blocks or [inputs.missing(words["missing"])])]


def heads(inputs: PaperInputs) -> list[Block]:
    """Return the forms of the importance head: in print, each NOSA fork with its own, and their differences."""
    words, rows = inputs.words("heads"), list[Compared]()
    where = [place for place in places(inputs) if place[0] == "ruler"]
    for row in inputs.published.rows("heads"):
        printed, fork = (
            inputs.published.figure("heads", "ruler", head=row["head"]),
            fork_of(inputs, "nosa", row["head"]),
        )
        found = samples(inputs, fork.model, "nosa", where[0]) if fork and where else {}
        if not found:
            rows.append(compared([row["head"]], printed))
            continue
        mean = inputs.estimate(found, "heads", row["head"])
        bounds = wording.interval(100 * mean.low, 100 * mean.high, 1)
        value = wording.number(100 * mean.value, 1)
        rows.append(compared([row["head"]], printed, value, bounds, "other model", "muted", "the order counts"))
    caption = words["caption"].format(suite="ruler", context=f"{where[0][1]:,}" if where else wording.DASH)
    found_any = any(row.verdict != "not measured" for row in rows)
    more = [] if found_any else [inputs.missing(words["missing"])]
    return [Prose(words["text"]), Comparison(caption, ("Head",), rows, "points"), *_forms(inputs), *more]


def _forms(inputs: PaperInputs) -> list[Block]:
    """Return NOSA's fork minus each fork with another form of the head, suite by suite and on books."""
    nosa, words, blocks = fork_of(inputs, "nosa"), inputs.words("heads"), list[Block]()
    others = [fork for fork in forks(inputs) if fork.attention == "nosa" and fork != nosa]
    rows = [
        against(inputs, [place[0], fork.head], ours, theirs, None, place)
        for place in (places(inputs) if nosa else [])
        for fork in others
        if (ours := samples(inputs, nosa.model if nosa else "", "nosa", place))
        and (theirs := samples(inputs, fork.model, "nosa", place))
    ]
    if rows:
        blocks.append(Comparison(words["over"], ("Suite", "Form"), rows, "points"))
    for place in places(inputs, BOOKS):
        base, full, own = own_losses(inputs, place)
        mine = [(fork, label) for fork, label in own if fork.attention == "nosa"]
        if base is None or len(mine) < 2:
            continue
        rows = [over_full(inputs, *one, own[one], base, full, place) for one in mine]
        rows += [minus(inputs, *one, own, place) for one in mine if is_other(inputs, one[0], own)]
        caption = words["losses"].format(**_about(place, full))
        blocks.append(Comparison(caption, ("Fork", "Method", "Tokens read"), rows, "nats a token"))
    return blocks


def own_losses(inputs: PaperInputs, place: Place) -> tuple[Fork | None, pairs.Scored, Own]:
    """Return the full fork, its losses with full attention, and those of every fork and label that the page shows."""
    base = base_of(inputs, place)
    full = samples(inputs, base.model, REFERENCE_METHOD, place) if base else {}
    own = {
        (fork, label): found
        for fork in forks(inputs)
        for label in (*shown(inputs, fork, place), *([fork.attention] if fork.head != "ed_dma" else []))
        if (found := samples(inputs, fork.model, label, place))
    }
    return base, full, own


def is_other(inputs: PaperInputs, fork: Fork, own: Own) -> bool:
    """Return true for a fork that NOSA's own, if it has losses, is set beside."""
    nosa = fork_of(inputs, "nosa")
    return nosa is not None and (nosa, "nosa") in own and fork != nosa


def over_full(
    inputs: PaperInputs, fork: Fork, label: str, found: pairs.Scored, base: Fork, full: pairs.Scored, place: Place
) -> Compared:  # fmt: skip
    """Return a fork's losses under a label minus the full fork's with full attention."""
    gap = own_gap(inputs, fork, label, found, full, place) if fork == base else None
    return with_reads(inputs, _loss_gap(inputs, [fork.title, label], found, full, place, gap), fork, label, place)


def minus(inputs: PaperInputs, fork: Fork, label: str, own: Own, place: Place) -> Compared:
    """Return NOSA's fork minus another."""
    nosa = fork_of(inputs, "nosa")
    ours = next(found for (one, _), found in own.items() if one == nosa)
    row = _loss_gap(inputs, [f"nosa minus {fork.title}", label], ours, own[fork, label], place)
    return with_reads(inputs, row, fork, label, place)


def _loss_gap(
    inputs: PaperInputs, of: list[str], ours: pairs.Scored, theirs: pairs.Scored, place: Place,
    gap: pairs.Paired | None = None,
) -> Compared:  # fmt: skip
    gap = gap or inputs.paired(ours, theirs, *of, *place)
    sign = gap.sign(inputs.alpha)
    verdict = "no difference shown" if sign == 0 else "more loss" if sign > 0 else "less loss"
    level: Level = "muted" if sign == 0 else "worse" if sign > 0 else "shown"
    reason = f"less in {gap.losses} of {gap.wins + gap.losses} books, {p_text(gap)}"
    text, bounds = wording.number(gap.value, 3, signed=True), wording.interval(gap.low, gap.high, 3, signed=True)
    return compared(of, None, text, bounds, verdict, level, reason)


def _along(inputs: PaperInputs, base: Fork, place: Place, full: pairs.Scored) -> list[Block]:
    """Return the figure of losses along the continuation, with what the last quarter has over the first, in words."""
    reference = _by_book(inputs, base.model, REFERENCE_METHOD, place)
    trained = [(fork, fork.attention) for fork in forks(inputs) if fork.head == "ed_dma" and fork != base]
    frames, readings = [], []
    for fork, label in [*trained, *((base, label) for label in untrained(inputs, base))]:
        over = _by_book(inputs, fork.model, label, place) - reference
        if over.empty or over.isna().to_numpy().any():
            continue
        means = pd.DataFrame({"position": over.columns, "loss_over_full_fork": over.mean().to_numpy()})
        kind = "trained for" if fork != base else "not trained for"
        frames.append(means.assign(fork=fork.name, method=label, kind=kind))
        if label in ("nosa", "shadowkv") and len(over.columns) >= 4:
            quarter = len(over.columns) // 4
            drift = over.iloc[:, -quarter:].mean(axis=1) - over.iloc[:, :quarter].mean(axis=1)
            value, low, high = mean_interval(drift.to_numpy())
            bounds = wording.interval(low, high, 3, signed=True)
            sure = "" if low > 0 or high < 0 else ", no climb shown"
            readings.append(f"{label} {wording.number(value, 3, signed=True)} nats {bounds}{sure}")
    if not frames:
        return []
    words = inputs.words("books")
    found: list[Block] = [Picture(along_figure(inputs.writer, pd.concat(frames), words["along"], _about(place, full)))]
    return [*found, Prose(words["drift"].format(readings="; ".join(readings)))] if readings else found


def _by_book(inputs: PaperInputs, model: str, label: str, place: Place) -> pd.DataFrame:
    """Return the model's own losses, a row a book and a column a stretch of the continuation, by its first token."""
    rows = {
        record.sample_index: {
            int(name.removeprefix(_FROM)): value for name, value in record.measures.items() if name.startswith(_FROM)
        }
        for record in records_of(inputs, model, label, place)
    }
    found = pd.DataFrame.from_dict(rows, orient="index", dtype=np.float64)
    return found.reindex(columns=sorted(found.columns))


def _about(place: Place, full: pairs.Scored) -> dict[str, str]:
    count = len({sample.problem for sample in full.values()})
    return {**named(place), "task": next(iter(full))[1], "books": str(count)}
