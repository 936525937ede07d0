"""Make the Overview: the answer first, the trade-off, the claim table, then the ways to each other page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from longdecode.reporting import charts, tradeoff, wording
from longdecode.reporting.runs import REFERENCE, Run, each, groups, top
from longdecode.reporting.site import Page, Site
from longdecode.reporting.tasks import question, text_speeds
from longdecode.reporting.tradeoff import NEEDED, PLACE, VARIANT, Choice, choose, fastest

_STATES = {
    "proven": "within the margin on every suite of the run",
    "open": "a loss is neither proven nor excluded",
    "none": "no faster variant is shown to be within the margin",
}

_REACHES = ("reproduced", "partly", "not reproduced")
"""Verdicts that say how much of a published figure was reached."""


def write_overview(site: Site) -> None:
    """Write index.html."""
    page, rows = Page("index"), site.joined
    values: dict[str, Any] = {"hero": None, "cards": [], "needs": [], "answers": None, "controls": {}, "needed": NEEDED}
    if len(rows):
        values |= _tradeoff(site, page, rows)
    told = {"findings": list(findings(site)), "claims": claim_rows(site), "gaps": _gaps(site, page)}
    site.write(page, "overview.html", **told, **values)


def place_words(site: Site, place: tuple[Any, ...]) -> str:
    """Return a place in words: model, context and batch."""
    _, model, context, batch = place
    return f"{wording.model_title(model)}, {wording.tokens(context)} tokens, batch {batch}"


def default_place(rows: pd.DataFrame) -> tuple[Any, ...]:
    """Return the place that the Overview opens with: where tasks have the most prompts, then the larger batch."""
    own = rows[rows.model == rows.losses_of]
    fewest = (own if len(own) else rows).groupby(PLACE).n.min()
    return max(fewest.index, key=lambda place: (fewest[place], place[3], place[2]))


def _tradeoff(site: Site, page: Page, rows: pd.DataFrame) -> dict[str, Any]:
    choices = {place: choose(part) for place, part in groups(rows, PLACE)}
    first = default_place(rows)
    views, titles = {}, {}
    for (*place, suite, task), part in groups(rows, [*PLACE, "suite", "task"], sort=False):
        key = "|".join(map(str, (*place, f"{suite}.{task}")))
        views[key] = tradeoff.tradeoff_view(part, choices[tuple(place)])
        views[key]["title"] = titles[key] = view_title(part, choices[tuple(place)])
    at_first = [key for key in views if key.startswith("|".join(map(str, first)))]
    opening = next((key for key in at_first if views[key]["unit"] == "points"), at_first[0])
    specs = {unit: tradeoff.tradeoff(unit) for unit in sorted({view["unit"] for view in views.values()})}
    page.views = {"views": views, "specs": specs, "first": opening}
    shown = tradeoff.filled(specs[views[opening]["unit"]], views[opening])
    data = rows.drop(columns=["params"], errors="ignore")
    hero = site.figure(page, "tradeoff", titles[opening], shown, data, width=860)
    page.specs.pop(hero.name)
    return {
        "hero": hero,
        "first": opening,
        "cards": [card(site, place, found) for place, found in choices.items()],
        "first_card": "|".join(map(str, first)),
        "needs": list(needs(site, rows)),
        "answers": answers(site, rows),
        "controls": controls(rows),
    }


def controls(rows: pd.DataFrame) -> dict[str, list[tuple[str, str]]]:
    """Return the choices of each filter as (value, words); the page's script disables those without rows."""
    pairs = rows[["run", "model"]].drop_duplicates().pipe(each)
    tasks = rows[["suite", "task"]].drop_duplicates().pipe(each)
    return {
        "model": [(f"{run}|{model}", f"{wording.model_title(model)} · {run}") for run, model in pairs],
        "context": [(str(c), wording.tokens(c)) for c in sorted(rows.context.unique())],
        "batch": [(str(b), str(b)) for b in sorted(rows.batch.unique())],
        "task": [(f"{suite}.{task}", wording.task_title(suite, task)) for suite, task in tasks],
    }


def view_title(part: pd.DataFrame, chosen: Choice) -> str:
    """Return the finding of one view: how many faster variants are within the margin on this task, or what is open."""
    row = part.iloc[0]
    faster = part[(part.speed > 1) & (part.family != "reference")]
    where = f"{wording.task_title(row.suite, row.task)}, {wording.tokens(row.context)} tokens, batch {row.batch}"
    within = faster[faster.verdict == "within"]
    unclear = faster[(faster.verdict == "cannot tell") & (faster.loss_low <= faster.margin)]
    if faster.empty:
        return f"{where}: no variant is faster than Full"
    if len(within):
        best = top(within, within.speed)
        held = "within the margin" if chosen.state == "proven" else "within the margin of this task, if not of all"
        return f"{where}: {best.title} is {wording.number(best.speed, 'times')} times as fast as Full {held}"
    if len(unclear):
        best = top(unclear, unclear.speed)
        open_one = f"{best.title} at {wording.times(best.speed)} times is open"
        return f"{where}: nothing faster is proven within the margin; {open_one}"
    return f"{where}: none of {len(faster)} faster variants reaches the margin"


def task_line(row: Any) -> dict[str, Any]:
    """Return one task of a card: its loss with interval, verdict and prompts."""
    unit = tradeoff.loss_unit(row.unit)
    return {
        "title": wording.task_title(row.suite, row.task), "suite": row.suite, "n": int(row.n),
        "loss": wording.number(row.loss, unit), "interval": wording.interval(row.loss_low, row.loss_high, unit),
        "unit": unit, "verdict": row.verdict, "why": wording.REASONS.get(row.status, ""),
    }  # fmt: skip


def card(site: Site, place: tuple[Any, ...], found: Choice) -> dict[str, Any]:
    """Return the card of a place: what to take, how fast it is, what it loses on each task, and how sure that is."""
    where = {"model": place[1], "context": place[2]}
    if not found.rows.empty:
        where |= {"variant": found.first.variant, "budget": found.first.budget}
    out = {
        "key": "|".join(map(str, place)),
        "place": f"{place_words(site, place)}; {', '.join(site.run(place[0]).devices_of(where))}",
        "state": found.state,
        "state_words": _STATES[found.state],
    }
    if found.rows.empty:
        return out
    row = found.first
    if row.losses_of != row.model:
        out["place"] += f"; losses of {wording.model_title(row.losses_of)}, among what was timed here"
    others = [
        {
            "title": part.title.iloc[0], "budget": _size(part.iloc[0]),
            "speed": wording.number(part.speed.iloc[0], "times"),
            "worst": task_line(top(part, (part.loss / part.margin))),
            "row": row_anchor(place[0], place[1], place[2], part.variant.iloc[0], part.budget.iloc[0]),
        }
        for part in found.others
    ]  # fmt: skip
    return out | {
        "others": others, "front": _front_words(found.rows.front_share.dropna()),
        "title": row.title, "family": row.family, "budget": _size(row),
        "method": site.run(place[0]).methods[row.variant], "speed": wording.number(row.speed, "times"),
        "speed_interval": wording.interval(row.speed_low, row.speed_high, "times"),
        "tasks": [task_line(r) for r in found.rows.pipe(each)],
        "row": row_anchor(place[0], place[1], place[2], row.variant, row.budget),
    }  # fmt: skip


def _size(row: pd.Series) -> str:
    """Return a budget in tokens; nothing where everything is read."""
    return "" if row.budget == REFERENCE else f"{int(row.budget_tokens):,}"


def _front_words(shares: pd.Series) -> str:
    """Return in how many draws a variant is on the front, from its least to its best task."""
    return " to ".join(dict.fromkeys(f"{share:.0%}" for share in (shares.min(), shares.max()))) if len(shares) else ""


def row_anchor(run: str, model: str, context: int, variant: str, budget: str) -> str:
    """Return the name of a row of the Compare table."""
    return wording.slug(run, model, context, variant, budget)


def answers(site: Site, rows: pd.DataFrame) -> dict[str, Any]:
    """Return what to take at the two longest contexts of the Overview's model, a column a context and batch.

    Each answer is of one variant, at one place of one run: of that whose tasks have the most prompts where not said.
    """
    mine = rows[rows.model == default_place(rows)[1]]
    mine = mine[mine.context.isin(sorted(mine.context.unique())[-2:])]
    columns = {
        f"{wording.tokens(context)}, batch {batch}": sorted(
            (of for _, of in groups(part, "run")), key=lambda of: -of.n.min()
        )
        for (context, batch), part in groups(mine, ["context", "batch"])
    }
    in_prompt = mine.suite.map(question) != "decoded"
    asked = {
        "Fastest, no loss shown": mine.groupby([*PLACE, *VARIANT]).loss_low.transform("max") <= 0,
        "Fastest within the margin": in_prompt | True,
        (unquantised := "Fastest within, no quantised cache"): mine.family != "quantised",
        "Question in the prompt": in_prompt,
        "Question decoded": ~in_prompt,
    }
    found = {
        need: [_taken([of[kept[of.index]] for of in parts]) for parts in columns.values()]
        for need, kept in asked.items()
        if kept.any()
    }
    found["Quantised caches"] = [_quantised(parts[0]) for parts in columns.values()]
    found["Fastest of all"] = [_fastest(parts[0]) for parts in columns.values()]
    runs = ", ".join(dict.fromkeys(parts[0].run.iloc[0] for parts in columns.values()))
    return {
        "heads": list(columns), "rows": found, "where": f"{wording.model_title(mine.model.iloc[0])}; runs {runs}",
        "dense": not in_prompt.all() and all(words.startswith("none") for words in found.get(unquantised, [""])),
    }  # fmt: skip


def _taken(parts: Sequence[pd.DataFrame]) -> str:
    """Return the fastest pick that a run proves at one place, with its run if it is not the first; else what may be."""
    picks = [found for part in parts if len((found := choose(part)).rows)]
    proven = max((found for found in picks if found.state == "proven"), key=lambda of: of.first.speed, default=None)
    if not picks:
        return "none"
    row = (proven or picks[0]).first
    size = f", {_size(row)} tokens" if _size(row) else ""
    words = f"{tradeoff.short_title(row.title)}{size}: {wording.times(row.speed)}{wording.TIMES}"
    if proven is None:
        return f"none proven; {words} (cannot tell, {picks[0].prompts[0]} prompts)"
    return words if row.run == parts[0].run.iloc[0] else f"{words} (run {row.run}, {row.n} prompts)"


def _quantised(here: pd.DataFrame) -> str:
    """Return the speed of each quantised cache and its largest loss."""
    told = [
        f"{tradeoff.short_title(of.title.iloc[0])}: {wording.times(of.speed.iloc[0])}{wording.TIMES}, "
        f"loses up to {wording.number(of.loss.max(), tradeoff.loss_unit(of.unit.iloc[0]))}"
        for _, of in groups(here[(here.family == "quantised") & (here.budget == REFERENCE)], "variant")
    ]
    return "; ".join(told) or "not run"


def _fastest(here: pd.DataFrame) -> str:
    """Return the fastest variant of a place with the loss of the task on which it loses most."""
    if (row := fastest(here)) is None:
        return "Full"
    return f"{row.title}: {wording.times(row.speed)}{wording.TIMES}, loses {wording.number(row.loss, 'points')} points"


def needs(site: Site, rows: pd.DataFrame) -> Iterator[dict[str, str]]:
    """Yield what to take for long answers, one line a model and suite, and for long text."""
    long, prose = (rows.suite.isin(wording.TITLES[name]) for name in ("long_answers", "prose"))
    yield from untimed_answers(site, rows[long])
    for text in (text for method in site.methods for text in text_speeds(site, method)):
        answer = f"{text['title']}: {text['ratio']}{wording.TIMES}, one text at a time, Full’s but for rounding"
        yield {"need": "Long answers", "place": f"{text['model']}, {text['tokens']} tokens written", "answer": answer}
    for need, part in (("Long answers", rows[long]), ("Long text, no look-ups", rows[prose])):
        for _, mine in groups(part, ["run", "model"]):
            place, here = max(mine[mine.batch == mine.batch.max()].groupby(PLACE), key=lambda item: item[0][2])
            yield {"need": need, "place": place_words(site, place), "answer": _taken([here])}


def untimed_answers(site: Site, timed: pd.DataFrame) -> Iterator[dict[str, str]]:
    """Yield how near long answers come to Full's where they were not timed as they were scored, one line a suite.

    Args:
        timed: joined rows of long answers; their runs and models have a line of their own.
    """
    known = set(timed[["run", "model"]].pipe(each)) if len(timed) else set()
    for run in (run for run in site.settled if len(run.losses)):
        losses = run.leading(run.losses[run.losses.suite.isin(wording.TITLES["long_answers"])])
        told = losses[(losses.verdict != "") & (losses.unit == "points")]
        for (model, suite, task), part in groups(told, ["model", "suite", "task"]):
            nearest = top(part, -part.loss)
            if (run.name, model) not in known and model not in site.passed:
                bounds = wording.interval(nearest.loss_low, nearest.loss_high, "points")
                least = f"{run.title(nearest.variant)} loses {wording.number(nearest.loss, 'points')} points {bounds}"
                answer = f"Full: all that ran it whole lose; nearest, {least}" if nearest.verdict == "worse" else least
                answer += "".join(_on_a_part(run, model, suite, set(part.variant)))
                place = f"{wording.model_title(model)}, {wording.task_title(suite, task)}"
                yield {"need": "Long answers", "place": place, "answer": answer}


def _on_a_part(run: Run, model: str, suite: str, told: set[str]) -> Iterator[str]:
    """Yield a sentence on each variant that is worse on none of the tasks that it ran, of which some are missing."""
    tasks = set(run.summary[(run.summary.suite == suite) & (run.summary.task != "all")].task)
    rows = run.losses[(run.losses.model == model) & run.losses.task.isin(tasks) & ~run.losses.variant.isin(told)]
    for variant, part in groups(rows, "variant"):
        if not part.verdict.isin(["worse"]).any():
            word = "within the margin" if (part.verdict == "within").all() else "cannot tell, no loss is proven"
            yield f". {run.title(variant)} on {len(part)} of {len(tasks)} tasks: {word}"


def findings(site: Site) -> Iterator[dict[str, str]]:
    """Yield at most three findings, each from verdicts and measured speeds."""
    rows = site.joined
    if len(rows):
        place = default_place(rows)
        here = rows[(rows[PLACE] == list(place)).all(axis=1)]
        yield _pick_finding(site, place, choose(here))
        if (quick := fastest(here)) is not None:
            bounds = wording.interval(quick.loss_low, quick.loss_high, "points")
            loss = f"{wording.number(quick.loss, 'points')} points {bounds}"
            word = {"worse": "is not good enough", "within": "keeps quality"}.get(quick.verdict, "is undecided")
            on = f"on {wording.task_title(quick.suite, quick.task)}"
            text = f"{quick.title} is {wording.times(quick.speed)} times as fast there; {on} it loses {loss}."
            yield {"head": f"The fastest variant {word}.", "text": text}
    claims = site.claims
    answered = claims[claims.answered & (claims.verdict != "not comparable")] if len(claims) else claims
    if len(answered):
        counts = answered.verdict.value_counts()
        words = ", ".join(f"{counts[v]} {v}" for v in wording.OUTCOMES if v in counts)
        yield {
            "head": f"{counts.get('reproduced', 0)} of {len(answered)} claims of the papers are reproduced.",
            "text": f"Of those tested: {words}. The table of claims has both numbers and the reason.",
            "link": "#claims",
        }


def _pick_finding(site: Site, place: tuple[Any, ...], found: Choice) -> dict[str, str]:
    where = place_words(site, place)
    if found.state == "none":
        return {
            "head": "Full attention stays the choice.",
            "text": f"{where}: no variant is shown to be faster and within the margin on every suite of the run.",
        }
    row = found.first
    variant = row.title if row.budget == REFERENCE else f"{row.title} with {int(row.budget_tokens):,} tokens"
    speed = f"{variant} decodes {wording.times(row.speed)} times as fast as Full"
    if found.state == "proven":
        return {
            "head": f"{row.title} is the fastest within the margin.",
            "text": f"{where}: {speed} and stays within the margin on every suite of the run.",
        }
    low, high = found.prompts
    count = f"{low}" if low == high else f"{low} to {high}"
    return {
        "head": "We cannot tell yet which method to take.",
        "text": f"{where}: {speed}; its losses are neither proven nor excluded with {count} prompts a task.",
    }


def claim_rows(site: Site) -> list[dict[str, Any]]:
    """Return the rows of the claim table; a site of one run leaves out claims that the run has no number for."""
    claims = site.claims
    if len(claims) and len(site.runs) == 1:
        claims = claims[claims.answered]
    return [claim_cells(site, row) for row in claims.pipe(each)]


def claim_cells(site: Site, row: Any) -> dict[str, Any]:
    """Return one claim as text."""
    unit = "" if wording.missing(row.unit) else str(row.unit)
    word = wording.unit_word(unit)
    published = str(row.published)
    signed = published[:1] in ("+", wording.MINUS)
    ours = f"{wording.number(row.like_for_like, unit, signed=signed)}{word}" if row.answered else ""
    best = "" if wording.missing(row.best) else f"{wording.number(row.best, unit, signed=signed)}{word}"
    return {
        "paper": row.paper, "name": site.papers[row.paper].name, "claim": row.claim, "anchor": row.anchor,
        "published": f"{published}{word}" if any(map(str.isdigit, published)) else published,
        "ours": ours, "interval": wording.interval(row.low, row.high, unit) if ours else "",
        "best": best, "best_variant": _best_words(site.run(row.run), row.best_variant),
        "verdict": row.verdict, "style": wording.OUTCOMES.get(row.verdict, "none"),
        "why": row.why if not wording.missing(row.why) else row.conditions if row.verdict == "not run" else "",
        "conditions": row.conditions, "source": row.source,
    }  # fmt: skip


def _best_words(run: Run, text: object) -> str:
    """Return the best variant in titles: analysis writes its name first, then its place."""
    if wording.missing(text):
        return ""
    name, *rest = str(text).split(", ")
    titles = wording.TITLES["tasks"]
    return ", ".join([run.title(name), *(titles.get(part.removeprefix("task "), part) for part in rest)])


def _gaps(site: Site, page: Page) -> Any:
    """Return the figure of published against measured speed-ups; none where fewer than two were measured."""
    claims = site.claims
    if claims.empty:
        return None
    rows = claims[claims.answered & (claims.unit == "times") & claims.verdict.isin(_REACHES)].assign(
        print=lambda c: c.published.str.extract(r"([\d.]+)")[0].astype(float)
    )
    if len(rows) < 2:
        return None
    frame = rows.reset_index(drop=True).rename(columns={"like_for_like": "ours"})
    frame["name"] = [f"{site.papers[r.paper].name}: {r.claim}" for r in rows.pipe(each)]
    frame["family"] = [wording.family(site.papers[r.paper].method) for r in rows.pipe(each)]
    frame = frame[["name", "print", "ours", "low", "high", "family"]]
    reached = int((rows.verdict == "reproduced").sum())
    title = f"{reached} of {len(rows)} published speed-ups are reached here, like for like"
    spec = charts.dumbbells(frame, "Times as fast (log scale)", log=True)
    note = "Grey: the paper. Colour: measured here, with its 95 % interval."
    return site.figure(page, "published", title, spec, frame, note)
