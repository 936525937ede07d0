"""Fill the front page's first screen: three sentences, one chart of quality against speedup, and verdicts by family."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from longdecode.evals.budgets import bytes_share
from longdecode.reporting import drawing, nearest, quality
from longdecode.reporting.figure import Figure, FigureWriter, Layout, Words
from longdecode.reporting.results import REFERENCE_METHOD, Results, Topic
from longdecode.reporting.speed.measured import CEILING_METHOD, STEP, Speed
from longdecode.reporting.verdicts import WITHIN, Grid, Verdict, margin
from longdecode.reporting.wording import (
    budget,
    is_fraction,
    listing,
    plural,
    ratio,
    scale,
    short_tokens,
    slug,
    unit_label,
)

ASKED_CONTEXT = 32768
"""The context that the first sentence answers for, where it was scored; otherwise the longest one."""
_KEYS = ["label", "context", "budget"]
_SHOWN = 3
_NAMED = 4
_MORE_BYTES = 0.02


Families = Sequence[tuple[str, Sequence[Grid]]]


@dataclass(frozen=True, slots=True)
class Pareto:
    """The chart, and what is missing: all of it, or the times where it is drawn against bytes."""

    figure: Figure | None
    missing: str = ""


def sentences(
    results: Results, speed: Speed | None, grids: Sequence[Grid], model: str, featured: Collection[str], tuned: str
) -> list[str]:
    """Return what came out in at most three sentences: what holds at one context, what fails, and what it saves.

    Where no method holds, the first two name what comes nearest instead, on every suite and at every budget.

    Args:
        results: without ablations.
        speed: what was timed.
        grids: the model's verdicts.
        model: as sentences name it.
        featured: labels that overviews show.
        tuned: how knobs were chosen, in words.
    """
    contexts = sorted({context for grid in grids for context in grid.contexts})
    if not contexts:
        return []
    context = ASKED_CONTEXT if ASKED_CONTEXT in contexts else contexts[-1]
    everybody = _at(grids, context)
    here = {label: found for label, found in everybody.items() if label in featured}
    real = [label for label in here if label != nearest.ORACLE]
    holding = sorted((label for label in real if _holds(here[label])), key=lambda label: _reads(here[label]))
    judged = {v.topic.name for found in here.values() for v in found}
    asked = [grid.topic.name for grid in grids if context in grid.contexts]
    names = listing([name for name in asked if name in judged])
    if not judged:
        return [
            f"At {short_tokens(context)} tokens {model} itself, reading everything, does not solve {listing(asked)}."
        ]
    left = [name for name in asked if name not in judged]
    place = f"at {short_tokens(context)} tokens of {model}"
    margins = listing(sorted({margin(grid.topic.unit) for grid in grids}, key=len))
    said = []
    if holding:
        parts = [
            f"{label} from a budget of {_largest(here[label])} ({_reads_text(here[label])})"
            for label in holding[:_SHOWN]
        ]
        more = f"; more bytes: {listing(holding[_SHOWN:])}" if len(holding) > _SHOWN else ""
        said.append(
            f"On {names} {place}, within {margins} of Full ({tuned}) and by fewest bytes read: "
            f"{'; '.join(parts)}{more}."
        )
        if elsewhere := [grid.topic.name for grid in grids if context not in grid.contexts]:
            said[0] += f" The grid below has {listing(elsewhere)} too, scored at other contexts."
    else:
        said += nearest.sentences(results, model, tuned, _places(grids, context), context)
    if left:
        said[0] += f" Full itself does not solve {listing(left)} there, so nobody is judged on it."
    failing = {label: [v.topic.name for v in found if v.level == "worse"] for label, found in here.items()}
    lost = sorted((label for label, names_ in failing.items() if names_), key=lambda label: -len(failing[label]))
    smallest = contexts[0]
    harder = _harder(here, _at(grids, smallest)) if smallest != context else []
    words = []
    if lost:
        words.append(
            "still worse than Full at the largest budget: "
            + "; ".join(_named([f"{label} (on {listing(failing[label])})" for label in lost]))
        )
    if harder:
        words.append(f"at {short_tokens(smallest)} tokens a larger share is needed by {listing(_named(harder))}")
    if lost and (others := len(everybody.keys() - here.keys())):
        words.append(f"the grid below judges {plural(others, 'further method')}")
    if words and holding:
        text = "; ".join(words)
        said.append(text[0].upper() + text[1:] + ".")
    if speed is not None:
        named = set(holding[:_SHOWN]) if holding else nearest.leaders(results, _places(grids, context))
        said += _speed_sentence(speed, model, context, named)
    return said


def pareto(
    results: Results, writer: FigureWriter, model: str, about: str, families: Families, featured: Collection[str]
) -> Pareto | None:
    """Draw quality against the measured speedup over Full, of configurations that were scored and timed as they are.

    Without such a configuration there is no chart.

    A mark is one method at one budget, a line joins its budgets; both sides are of this model, label, context and
    budget. The context is the longest that most labels share, the batch the largest. A family of suites has one panel,
    the topic on which methods differ most there.

    Args:
        results: without ablations.
        writer: where the figure goes.
        model: whose scores.
        about: the end of the caption.
        families: the model's verdicts by family of suites.
        featured: labels that overviews show; those that come nearest to Full somewhere are drawn too.
    """
    speed = results.speed
    pairs = _pairs(results, speed, model)
    if pairs.empty or speed is None:
        return None
    sizes = pairs.groupby(["context", "batch"])["label"].nunique()
    context, batch = max(sizes[sizes == sizes.max()].index)
    found = pairs[(pairs["context"] == context) & (pairs["batch"] == batch)]
    widest = [_widest([grid.topic for grid in grids], found) for _, grids in families]
    topics = [topic for topic in widest if topic is not None]
    if not topics:
        return Pareto(None, f"the configurations of {model} that were timed have no score.")
    shown = {*featured, *nearest.leaders(results, [(topic, context) for topic in topics])}
    found = found[found["label"].isin(shown)].sort_values(["label", "share"])
    tables = [found[found["suite"].eq(topic.suite) & found["task"].eq(topic.task)] for topic in topics]
    limits = _limits(speed, model, context, batch)
    fields = {
        "size": f"{short_tokens(context)} tokens, {plural(batch, 'sequence')}",
        "device": listing(speed.devices),
        "direction": "Upper right is best" if all(topic.higher_is_better for topic in topics)
        else "Upper right is best, lower right where the arrow points down",
    }  # fmt: skip
    columns = [
        "label", "suite", "task", "budget", "context", "batch", "value", "low", "high", "ratio", "ratio_low",
        "ratio_high",
    ]  # fmt: skip
    data = pd.concat(tables)[columns].rename(columns={"label": "method"})
    panels: list[Callable[[Axes], None]] = []
    for topic, table in zip(topics, tables, strict=True):
        full = results.rows_of(topic, context)
        full = full[(full["kind"] == REFERENCE_METHOD) & (full["status"] == "ok")]
        panels.append(_panel(writer, topic, table, full, limits, "" if panels else "free selection"))
    layout = Layout("step time of Full / step time (times as fast)", "", 1, 1, 3.1 if len(panels) == 1 else 1.9)
    figure = writer.write(f"pareto-{slug(model)}", Words("pareto", about, fields), panels, data, layout)
    return Pareto(figure)


def against_bytes(
    results: Results, writer: FigureWriter, model: str, about: str, families: Families, featured: Collection[str]
) -> Pareto:
    """Draw quality against the bytes that a step reads, which every score has, at one context.

    A family of suites has one panel, its topic that tells most cells apart.

    Args:
        results: without ablations.
        writer: where the figure goes.
        model: whose scores.
        about: the end of the caption.
        families: the model's verdicts by family of suites.
        featured: labels that overviews show; those that come nearest to Full somewhere are drawn too.
    """
    contexts = {context for _, grids in families for grid in grids for context in grid.contexts}
    context = ASKED_CONTEXT if ASKED_CONTEXT in contexts else max(contexts, default=0)
    known = [[grid.topic for grid in grids if context in grid.contexts] for _, grids in families]
    places = [
        (max(topics, key=lambda topic: results.rows_of(topic, context)["value"].nunique()), context)
        for topics in known
        if topics
    ]
    limits = {label for label in results.labels if results.kind(label) in (REFERENCE_METHOD, nearest.ORACLE)}
    shown = {*limits, *featured, *nearest.leaders(results, places)}
    words = Words("pareto_bytes", about, {"size": f"{short_tokens(context)} tokens"})
    figure = quality.against_bytes(
        results.without(set(results.labels) - shown), writer, f"pareto-bytes-{slug(model)}", words, places,
        Layout("bytes read (% of Full), not time", panel_in=1.9),
    )  # fmt: skip
    named = model in ((results.config.get("throughput") or {}).get("decode") or {})
    how = (
        "" if named else f"name {model} under `throughput.decode` with the contexts and budgets that are scored, then "
    )
    return Pareto(
        figure,
        f"times of {model}, so no method's speed is known. To add them: {how}"
        f"`snakemake --cores 8 times --config profile={results.profile}`, on a GPU that does nothing else.",
    )


def by_family(grids: Sequence[Grid], families: Mapping[str, str]) -> list[tuple[str, list[Grid]]]:
    """Return the grids by family of their suite; a suite that names none is one of its own."""
    found: dict[str, list[Grid]] = {}
    for grid in grids:
        found.setdefault(families.get(grid.topic.suite) or grid.topic.suite, []).append(grid)
    return list(found.items())


def _places(grids: Sequence[Grid], context: int) -> list[tuple[Topic, int]]:
    """Every topic that Full does at the context, then the others at the longest context at which it does them."""
    found = []
    for grid in grids:
        judged = {
            v.context for _, each, _ in grid.rows for v in each if v.context and v.level not in ("unsolved", "hole")
        }
        if judged:
            found.append((grid.topic, context if context in judged else max(judged)))
    return sorted(found, key=lambda place: place[1] != context)


def _at(grids: Sequence[Grid], context: int) -> dict[str, list[Verdict]]:
    """The verdicts of every method at one context, over the topics that have it."""
    found: dict[str, list[Verdict]] = {}
    for grid in grids:
        for label, each, _ in grid.rows:
            found.setdefault(label, []).extend(v for v in each if v.context == context and v.level != "unsolved")
    return found


def _holds(found: Sequence[Verdict]) -> bool:
    return bool(found) and all(v.level in WITHIN for v in found)


def _reads(found: Sequence[Verdict]) -> float:
    return max((v.read[1] for v in found if v.read), default=1.0)


def _reads_text(found: Sequence[Verdict]) -> str:
    most = max((v for v in found if v.read), key=lambda v: v.read[1] if v.read else 0.0, default=None)
    return f"{most.reads} of Full's bytes" if most else "bytes not counted"


def _largest(found: Sequence[Verdict]) -> str:
    """The budget that serves every topic."""
    return max(found, key=lambda v: v.read[1] if v.read else 0.0).budget


def _named(entries: Sequence[str]) -> list[str]:
    """The first few entries, and how many more there are."""
    more = len(entries) - _NAMED
    return [*entries[:_NAMED], *([f"{more} more"] if more > 0 else [])]


def _harder(here: Mapping[str, list[Verdict]], there: Mapping[str, list[Verdict]]) -> list[str]:
    """Methods that hold here, and there not at all or for more bytes."""
    return [
        label
        for label, found in here.items()
        if label in there
        and _holds(found)
        and (not _holds(there[label]) or _reads(there[label]) > _reads(found) + _MORE_BYTES)
    ]


def _speed_sentence(speed: Speed, model: str, asked: int, named: Collection[str]) -> list[str]:
    """Say how fast the fastest methods are, and those that the sentences before name, beside the free selection.

    Where the scored model is the largest that was timed, at the context asked for and at every batch; else of the
    largest timed model, at its longest context and smallest batch.
    """
    steps = speed.table
    steps = steps[
        (steps["bench"] == "decode") & (steps["stage"] == STEP) & (steps["status"] == "ok") & steps["ratio"].notna()
    ]
    models = steps.groupby("model")["bytes_min"].max()
    if models.empty:
        return []
    timed = str(models.idxmax())
    mine = steps[(steps["model"] == timed) & steps["budget"].isin(["full", speed.main_budget(timed)])]
    if timed == model and asked in set(mine["context"]):
        mine = mine[mine["context"] == asked]
    else:
        mine = mine[mine["batch"] == mine["batch"].min()]
        counts = mine.groupby("context")["label"].nunique()
        mine = mine[mine["context"] == max(counts[counts == counts.max()].index)]
    batches = sorted(set(mine["batch"]))
    ratios = mine.pivot_table(index="label", columns="batch", values="ratio")[batches].dropna()
    ratios = ratios.sort_values(batches[0], ascending=False)
    told = {
        label: " / ".join(ratio(value) for value in row)
        for label, row in zip(ratios.index, ratios.to_numpy(), strict=True)
    }
    methods = set(mine.loc[~mine["subject"].isin([REFERENCE_METHOD, CEILING_METHOD]), "label"]) & set(mine["subject"])
    order = [label for label in told if label in methods]
    first = [label for place, label in enumerate(order) if place < _SHOWN or label in named]
    if not first:
        return []
    left = len(order) - len(first)
    slower = "is" if left == 1 else "are"
    more = "" if not left else f" ({left} more {f'{slower} slower' if len(first) == _SHOWN else f'{slower} timed'})"
    free = f"; pages chosen for free, the limit of page lists, {told[CEILING_METHOD]}" if CEILING_METHOD in told else ""
    main = speed.main_budget(timed)
    at = f" and a budget of {budget(main)}" if main else ""
    return [
        f"A step of {timed} at {short_tokens(int(mine['context'].iloc[0]))} tokens, batch "
        f"{' / '.join(str(int(batch)) for batch in batches)}{at}, times as fast as Full: "
        f"{', '.join(f'{label} {told[label]}' for label in first)}{more}{free}; "
        "these are times, of the configurations that the page Speed names."
    ]


def _pairs(results: Results, speed: Speed | None, model: str) -> pd.DataFrame:
    """Scores and times of one model, label, parameters, context and budget."""
    if speed is None:
        return pd.DataFrame()
    steps = speed.table
    steps = steps[
        (steps["bench"] == "decode") & (steps["stage"] == STEP) & (steps["status"] == "ok") & (steps["model"] == model)
    ]
    columns = [*_KEYS, "batch", "params", "ratio", "ratio_low", "ratio_high"]
    steps = steps.loc[steps["ratio"].notna() & (steps["subject"] != CEILING_METHOD), columns]
    rows = results.summary
    rows = rows[(rows["model"] == model) & (rows["status"] == "ok") & rows["budget"].map(bytes_share).isna()]
    rows = rows.rename(columns={"method": "label"}).drop(columns="batch")
    joined = rows.merge(steps, on=_KEYS, suffixes=("", "_timed"))
    return joined[joined["params"] == joined["params_timed"]]


def _widest(topics: Sequence[Topic], found: pd.DataFrame) -> Topic | None:
    """The topic on which the timed configurations differ most; a share before a loss, as the two do not compare."""
    spread = {}
    for topic in topics:
        rows = found[(found["suite"] == topic.suite) & (found["task"] == topic.task)]
        if rows["label"].nunique() > 1:
            spread[topic] = (is_fraction(topic.unit), float(rows["value"].max() - rows["value"].min()))
    return max(spread, key=lambda topic: spread[topic]) if spread else None


def _limits(speed: Speed, model: str, context: int, batch: int) -> list[float]:
    rows = speed.table
    rows = rows[
        (rows["model"] == model)
        & (rows["subject"] == CEILING_METHOD)
        & (rows["stage"] == STEP)
        & (rows["status"] == "ok")
    ]
    return sorted(rows.loc[(rows["context"] == context) & (rows["batch"] == batch), "ratio"].dropna())


def _panel(
    writer: FigureWriter, topic: Topic, table: pd.DataFrame, full: pd.DataFrame, limits: Sequence[float], named: str
) -> Callable[[Axes], None]:
    factor = scale(topic.unit)

    def draw(axes: Axes) -> None:
        axes.set_title(f"{topic.name}, {unit_label(topic.unit)}{'' if topic.higher_is_better else ' ↓'}")
        for _, row in full.iterrows():
            drawing.reference(axes, writer.looks[row["method"]], row, factor)
        axes.axvline(1.0, color=drawing.FAINT, linewidth=1.0)
        for limit in limits[-1:]:
            drawing.limit(axes, limit, named)
        ordered = [
            label for label in writer.looks if label in set(table["label"]) and not writer.looks[label].is_reference
        ]
        for label in ordered:
            mine, look = table[table["label"] == label], writer.looks[label]
            x, y = mine["ratio"].to_numpy(dtype=float), mine["value"].to_numpy(dtype=float) * factor
            axes.vlines(x, mine["low"] * factor, mine["high"] * factor, color=look.colour, linewidth=1.0, alpha=0.55)
            axes.hlines(y, mine["ratio_low"], mine["ratio_high"], color=look.colour, linewidth=1.0, alpha=0.55)
            axes.plot(x, y, color=look.colour, linestyle=look.dashes, marker=look.marker, markerfacecolor=look.face)
        drawing.score_axis(axes, is_fraction(topic.unit))
        axes.margins(x=0.08)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))

    return draw
