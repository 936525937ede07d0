"""Show NOSA's fork with more training beside the first run: trainings, rivals, and what consecutive steps share."""

from __future__ import annotations

from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import Block, Cells, Prose
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.nosa.forks import training_curves, training_table
from longdecode.reporting.papers.nosa.locality import overlaps
from longdecode.reporting.papers.nosa.recipe import differences, training
from longdecode.reporting.papers.nosa.rerun import Rerun
from longdecode.reporting.staleness import older_scores


def longer(inputs: PaperInputs) -> list[Block]:
    """Return the ends of longer trainings, NOSA's fork minus each rival beside the shorter ones', and overlaps.

    Raises:
        ReportError: this run or the longer one has no fork of NOSA.
    """
    words, run = inputs.words("longer"), inputs.longer
    if run is None:
        return [Prose(words["text"]), inputs.missing(words["missing"], "longer")]
    now, before = (f"{training(each).steps:,} steps" for each in (run, inputs))
    first = [(inputs, f" ({words['first']})")]
    rerun = Rerun("longer", run, [*([(inputs.fresh, "")] if inputs.fresh else []), *first], now, before)
    curves, tables = training_curves(run), rerun.tables()
    return [
        Prose(f"{words['text']} {_what(inputs, rerun)}"),
        *(Prose(text) for text in older_scores(run.results)),
        training_table(run, curves) if curves else run.missing(words["untrained"], "longer"),
        *(tables or [run.missing(words["unscored"], "longer")]),
        _overlaps(inputs, rerun),
    ]


def _what(inputs: PaperInputs, rerun: Rerun) -> str:
    """Say what differs from the first run, and which forks were not trained for longer."""
    words, run = inputs.words("longer"), rerun.run
    ours, theirs = training(run), training(inputs)
    seeds = [f"{inputs.results.config.get('seed', 0)} ({words['first']})"]
    if inputs.fresh is not None:
        seeds.append(f"{inputs.fresh.results.config.get('seed', 0)} ({words['fresh']})")
    others = differences(run, inputs)
    text: str = words["what"].format(
        profile=run.results.profile, now=rerun.now, before=rerun.before, tokens=f"{ours.tokens / 1e6:.2f}",
        tokens_before=f"{theirs.tokens / 1e6:.2f}", seed=run.results.config.get("seed", 0),
        seeds=wording.listing(seeds), counts=rerun.counts(),
        recipe=words["differs"].format(settings=wording.listing(others)) if others else words["same"],
    )  # fmt: skip
    left = rerun.left(inputs)
    parts = [text, _prose(inputs, rerun), words["left"].format(forks=wording.listing(left)) if left else ""]
    return " ".join(filter(None, parts))


def _prose(inputs: PaperInputs, rerun: Rerun) -> str:
    """Say what held-out books cost the full fork after either training: the books of training are few."""
    now, before = (
        [float(curve.iloc[-1]["prose"]) for path, curve in training_curves(each).items() if path.parent.name == "full"]
        for each in (rerun.run, inputs)
    )
    if not now or not before:
        return ""
    losses = (wording.number(found[0], 3) for found in (now, before))
    text: str = inputs.words("longer")["prose"].format(**dict(zip(("now", "before"), losses, strict=True)))
    return text


def _overlaps(inputs: PaperInputs, rerun: Rerun) -> Block:
    """Return the overlap of steps of both forks and NOSA's lead, beside the first run's."""
    words, run = inputs.words("longer"), rerun.run
    now, before = overlaps(run), overlaps(inputs)
    if not now:
        return run.missing(words["unmeasured"], "longer_locality")
    none = (wording.DASH, "")
    rows = [[words["overlap"][name], *now[name], *before.get(name, none)] for name in now]
    heads = ("Overlap of steps", rerun.now, "Interval", rerun.before, "Interval")
    return Cells(words["overlaps"], heads, rows, frozenset({1, 3}))
