"""Answer on the front page, in three sentences: which method at one context, what its time is, where methods fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from longdecode.reporting import nearest
from longdecode.reporting.nearest import Choice, Place
from longdecode.reporting.pareto import ASKED_CONTEXT
from longdecode.reporting.quality import with_traffic
from longdecode.reporting.results import REFERENCE_METHOD, Results
from longdecode.reporting.speed.measured import CEILING_METHOD, STEP, Speed
from longdecode.reporting.verdicts import WITHIN, Grid, margin, smallest, tried
from longdecode.reporting.wording import budget_of, budget_order, listing, percent, plural, ratio, short_tokens

_SHOWN = 3
_NAMED = 4
_NARROW = 0.02
"""An interval of a ratio that is narrower than this share of it is not printed in a sentence."""
_LESS = 0.5
"""A second method is named where it reads at most this share of the first one's bytes."""


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence of the answer: what it says in short, and the numbers behind it; a note has no ``lead``."""

    lead: str
    text: str


@dataclass(frozen=True, slots=True)
class Asked:
    """The subject of the answer: one model at one context, and the topics that Full does there by family."""

    results: Results
    model: str
    context: int
    families: Mapping[str, Sequence[Place]]
    grids: Sequence[Grid]

    @property
    def places(self) -> list[Place]:
        """Every topic, with the context."""
        return [place for places in self.families.values() for place in places]

    @property
    def suites(self) -> str:
        """The topics in words."""
        return self.places[0][0].name if len(self.places) == 1 else "every suite"

    @property
    def here(self) -> str:
        """The place in words."""
        return f"{short_tokens(self.context)} tokens of {self.model}"

    @property
    def margins(self) -> str:
        """The margins of the topics in words."""
        return listing(sorted({margin(topic.unit) for topic, _ in self.places}, key=len)).replace(" and ", " or ")


def sentences(
    results: Results, model: str, families: Sequence[tuple[str, Sequence[Grid]]], tuned: str
) -> list[Said]:  # fmt: skip
    """Return the answer for one context: at most three sentences, and a note about what they do not speak of.

    Args:
        results: without ablations.
        model: whose verdicts.
        families: the model's verdicts by family of suites.
        tuned: how knobs were chosen, in words.
    """
    grids = [grid for _, mine in families for grid in mine]
    contexts = sorted({context for grid in grids for context in grid.contexts})
    if not contexts:
        return []
    context = ASKED_CONTEXT if ASKED_CONTEXT in contexts else contexts[-1]
    does = {family: [(grid.topic, context) for grid in mine if _full_does(grid, context)] for family, mine in families}
    asked = Asked(results, model, context, {family: places for family, places in does.items() if places}, grids)
    here = [grid.topic.name for grid in grids if context in grid.contexts]
    if not asked.places:
        return [Said("No method is judged.", f"At {asked.here} Full itself does not solve {listing(here)}.")]
    chosen, said = _which(asked, tuned)
    notes = []
    if chosen and not holding(results, asked.places):
        notes.append("Nearest: the method and budget that lose least, in margins, on the suite where they lose most.")
    if left := [name for name in here if name not in {topic.name for topic, _ in asked.places}]:
        notes.append(f"Full itself does not solve {listing(left)} there, so nobody is judged on it.")
    if elsewhere := [grid.topic.name for grid in grids if context not in grid.contexts]:
        notes.append(f"{listing(elsewhere)} {'was' if len(elsewhere) == 1 else 'were'} scored at other contexts only.")
    if barred := sorted(results.failed(model)):
        notes.append(f"{listing(barred)} failed the correctness gate and {'is' if len(barred) == 1 else 'are'} judged "
                     "nowhere.")  # fmt: skip
    return [said, *_time(asked, chosen), _by_family(asked), *([Said("", " ".join(notes))] if notes else [])]


def _full_does(grid: Grid, context: int) -> bool:
    return any(
        verdict.context == context and verdict.level != "unsolved" for _, each, _ in grid.rows for verdict in each
    )


def holding(results: Results, places: Sequence[Place]) -> list[Choice]:
    """Return the methods that hold on every place with their smallest budget, the fewest bytes first."""
    tables = {place: with_traffic(results.rows_of(*place)) for place in places}
    found = []
    every = nearest.choices(results, places)
    for label in dict.fromkeys(choice.label for choice in every):
        native = {choice.text: choice for choice in every if choice.label == label and choice.is_native}
        rows = {place: table[table["budget"].isin(native)] for place, table in tables.items()}
        held = smallest([tried(results, rows[place], place[0], label, place[1]) for place in places])
        if held is not None and held[1] in WITHIN:
            found.append(native[held[0]])
    return sorted(found, key=lambda choice: choice.share)


def _which(asked: Asked, tuned: str) -> tuple[list[Choice], Said]:
    """Return the methods to use, and the sentence about them."""
    if held := holding(asked.results, asked.places):
        first, rest = held[0], held[1:]
        parts = [_from(choice) for choice in rest[: _SHOWN - 1]]
        more = f" Next by bytes: {'; '.join(parts)}." if parts else ""
        if len(rest) >= _SHOWN:
            more += f" More bytes: {listing([choice.label for choice in rest[_SHOWN - 1 :]])}."
        text = (
            f"{_reads(first)}, the fewest that stay within {asked.margins} of Full on {asked.suites} "
            f"({_cells(first)}; {tuned}).{more}"
        )
        text += _shorter(asked, first)
        unsure = [each.topic.name for each in first.found if each.level == "few"]
        lead = f"use {first.label} from a budget of {first.budget}."
        if unsure:
            lead = f"{first.label} is nearest, from a budget of {first.budget}; too few samples to tell on "
            lead += f"{listing(unsure)}."
        return held[:_SHOWN], Said(f"For {asked.here}, {lead}", text)
    every = nearest.choices(asked.results, asked.places)
    if not every:
        return [], Said(f"At {asked.here} no method ran on {asked.suites}.", f"{tuned[0].upper()}{tuned[1:]}.")
    first = every[0]
    cheaper = next((choice for choice in every if choice.share <= _LESS * first.share), None)
    text = f"{_reads(first)} ({tuned}): {_cells(first)}."
    if cheaper:
        text += (
            f" With at most half of those bytes the nearest is {cheaper.label} at {cheaper.budget} ({cheaper.reads}): "
            f"{_worst(cheaper)}."
        )
    native = any(choice.is_native for choice in every)
    none = f"no method is within {asked.margins} of Full on {asked.suites}" if native else "every budget is in bytes"
    lead = f"At {asked.here} {none}; the nearest is {first.label} at {first.budget}."
    return [first, *([cheaper] if cheaper else [])], Said(lead, text)


def _shorter(asked: Asked, first: Choice) -> str:
    """Say at which other contexts the method asks for more: one context's verdict must not pass for all."""
    harder = []
    for context in sorted({context for grid in asked.grids for context in grid.contexts} - {asked.context}):
        places = [(grid.topic, context) for grid in asked.grids if _full_does(grid, context)]
        mine = [choice for choice in holding(asked.results, places) if choice.label == first.label] if places else []
        if places and not mine:
            harder.append(f"holds at no budget tried at {short_tokens(context)} tokens")
        elif mine and budget_order(mine[0].text) > budget_order(first.text):
            harder.append(f"takes {mine[0].budget} at {short_tokens(context)} tokens")
    return f" Elsewhere {first.label} {listing(harder)}." if harder else ""


def _reads(choice: Choice) -> str:
    return f"It reads {choice.reads} of Full's bytes" if choice.reads else "Its bytes were not counted"


def _from(choice: Choice) -> str:
    levels = {each.level for each in choice.found}
    how = ", too few samples to tell" if "few" in levels else "" if levels == {"shown"} else ", by the estimate"
    return f"{choice.label} from {choice.budget} ({choice.reads}{how})"


def _cells(choice: Choice) -> str:
    """Write the losses: topics outside the margin in numbers; of the others the worst, or their names."""
    lost = sorted((each for each in choice.found if each.level == "worse"), key=lambda each: -each.loss)
    kept = [each for each in choice.found if each.level != "worse"]
    if not lost:
        levels = {each.level for each in kept}
        return _worst(choice) + (", by the estimate" if "estimate" in levels and "few" not in levels else "")
    parts = [each.words for each in lost]
    for words, level in (
        ("within the margin on", "shown"),
        ("by the estimate within the margin on", "estimate"),
        ("too few samples to tell on", "few"),
    ):
        if mine := [each.topic.name for each in kept if each.level == level]:
            parts.append(f"{words} {listing(mine)}")
    return "; ".join(parts)


def _by_family(asked: Asked) -> Said:
    """Say what holds on each family alone, and where the fastest method fails."""
    parts = []
    for family, places in asked.families.items():
        held = holding(asked.results, places)
        if held:
            named = [_from(choice) for choice in held[:_NAMED]]
            more = [f"{len(held) - _NAMED} more"] if len(held) > _NAMED else []
            parts.append(f"{family}: {listing([*named, *more])}")
        elif every := nearest.choices(asked.results, places):
            first = every[0]
            worst = max(first.found, key=lambda each: each.loss)
            parts.append(f"{family}: none, the nearest {first.label} at {first.budget} ({first.reads}, {worst.words})")
    text = f"{'; '.join(parts)}."
    labels = {choice.label for choice in nearest.choices(asked.results, asked.places)}
    good = {choice.label for places in asked.families.values() for choice in holding(asked.results, places)}
    if (others := len(labels - good)) and len(labels) > 1:
        text += f" {'The other' if good else 'All'} {plural(others, 'method')}: on no family."
    return Said("What holds on each family of suites.", text[0].upper() + text[1:] + _fastest_fails(asked))


def _fastest_fails(asked: Asked) -> str:
    """Say what the fastest method of this model loses, at the budget where it loses least."""
    speed = asked.results.speed
    if speed is None:
        return ""
    rows = _steps(speed)
    rows = rows[(rows["model"] == asked.model) & (rows["context"] == asked.context)]
    rows = rows[rows["label"].isin(set(asked.results.labels) - asked.results.failed(asked.model))]
    order = [str(label) for label in rows.sort_values("ratio", ascending=False)["label"]]
    every = nearest.choices(asked.results, asked.places)
    best = next((choice for choice in every if order and choice.label == order[0]), None)
    if best is None or best.loss <= 1:
        return ""
    return f" The fastest, {best.label}, ends at best ({best.budget}, {best.reads}) with {_lost(best)}."


def _time(asked: Asked, chosen: Sequence[Choice]) -> list[Said]:
    """Say how fast the chosen methods are, as scored if that was timed, and the fastest ones."""
    speed = asked.results.speed
    if speed is None:
        return [Said("No time was measured in this run.", "Bytes are what is known of cost.")] if chosen else []
    steps = _steps(speed).pipe(lambda rows: rows[~rows["label"].isin(asked.results.failed(asked.model))])
    models = steps.groupby("model")["bytes_min"].max()
    if models.empty:
        return []
    largest = str(models.idxmax())
    mine = steps[(steps["model"] == asked.model) & (steps["context"] == asked.context)]
    if largest != asked.model or mine.empty:
        said = _elsewhere(asked, speed, steps[steps["model"] == largest], largest, chosen)
        own = [(choice.label, rows) for choice in chosen if len(rows := _same(mine, choice))]
        if not own:
            return [said]
        batches = " / ".join(str(batch) for batch in sorted({int(b) for _, rows in own for b in rows["batch"]}))
        ratios = "; ".join(f"{label} {_ratios(rows)}" for label, rows in own)
        return [Said(said.lead, f"{said.text} {asked.model} itself, timed as scored, batch {batches}: {ratios}.")]
    main = speed.main_budget(asked.model)
    at = mine[mine["budget"] == main]
    exact = [(choice, _same(mine, choice)) for choice in chosen]
    if exact and len(exact[0][1]):
        ran = [rows for _, rows in exact if len(rows)]
        twice = len({choice.label for choice in chosen}) < len(chosen)
        named = [f"{choice.label}{_at(choice.budget) if twice else ''}" for choice in chosen]
        told = [
            f"{name} {_ratios(rows) if len(rows) else 'not timed at its budget'}"
            for name, (_, rows) in zip(named, exact, strict=True)
        ]
        here = "" if all(set(rows["budget"]) == {main} for rows in ran) else budget_of(str(main))
        return [Said("Timed as scored.", _times(told, at, _fastest(at, ran, here), here))]
    timed = [(choice, rows) for choice in chosen if len(rows := at[at["label"] == choice.label])]
    told = [f"{choice.label} {_ratios(rows)}" for choice, rows in timed]
    others = sorted({text for text in mine["budget"] if text not in ("full", main)}, key=budget_order)
    also = f", of most methods; {listing([budget_of(text) for text in others])} too" if others else " only"
    lead = f"Scored and timed budgets differ: times are at {budget_of(str(main))}{also}."
    if untimed := [choice.label for choice in chosen if choice.label not in {one.label for one, _ in timed}]:
        told += [f"{listing(untimed)} not timed"]
    text = _times(told, at, _fastest(at, [rows for _, rows in timed]))
    scored = {choice.label: choice for choice in nearest.choices(asked.results, asked.places) if choice.text == main}
    there = [scored[choice.label] for choice, rows in timed if choice.label in scored and _same_params(scored, rows)]
    if there:
        text += f" Quality at that budget: {'; '.join(f'{choice.label} {_worst(choice)}' for choice in there)}."
    return [Said(lead, text)]


def _elsewhere(asked: Asked, speed: Speed, steps: pd.DataFrame, model: str, chosen: Sequence[Choice]) -> Said:
    """Times of another model, or of another context, than what was scored."""
    main = speed.main_budget(model)
    rows = steps[steps["budget"].isin([main, "full"]) & (steps["batch"] == steps["batch"].min())]
    counts = rows.groupby("context")["label"].nunique()
    context = max(counts[counts == counts.max()].index)
    rows = rows[rows["context"] == context]
    named = [choice.label for choice in chosen if choice.label in set(rows["label"])]
    told = [f"{label} {_ratios(rows[rows['label'] == label])}" for label in dict.fromkeys(named)]
    what = f"{model}{'' if model in asked.results.models else ', not scored,'} at {short_tokens(context)} tokens"
    what += f" with a budget of {budget_of(main)}" if main else ""
    differs = "models" if model != asked.model else "contexts"
    known = [rows[rows["label"] == label] for label in named]
    return Said(f"Scored and timed {differs} differ: times are of {what}.", _times(told, rows, _fastest(rows, known)))


def _times(told: Sequence[str], rows: pd.DataFrame, fastest: str, budget: str = "") -> str:
    batches = sorted(set(rows["batch"]))
    batch = f"batch {' / '.join(str(int(each)) for each in batches)}"
    free = rows[rows["subject"] == CEILING_METHOD]
    limit = (
        f" If choosing pages cost nothing (the limit of methods that read lists of pages{_at(budget)}): "
        f"{_ratios(free)}."
        if len(free)
        else ""
    )
    parts = [*told, *([fastest] if fastest else [])]
    narrow = f"intervals within ±{percent(_NARROW / 2)} % unless given"
    return f"Times as fast as Full at {batch} ({narrow}): {'; '.join(parts)}.{limit}" if parts else limit.strip()


def _at(budget: str) -> str:
    return f", at {budget}" if budget else ""


def _fastest(rows: pd.DataFrame, chosen: Sequence[pd.DataFrame], budget: str = "") -> str:
    """The fastest methods that are faster than the chosen ones; the budget is named where it is not theirs."""
    known = {str(label) for each in chosen for label in each["label"]}
    best = rows[~rows["subject"].isin([REFERENCE_METHOD, CEILING_METHOD])].groupby("label")["ratio"].max()
    rest = best[~best.index.isin(known)]
    rest = rest[rest > max(float(each["ratio"].max()) for each in chosen)] if chosen else rest
    names = [str(label) for label in rest.sort_values(ascending=False).index[: _SHOWN - 1]]
    told = [f"{label} {_ratios(rows[rows['label'] == label])}" for label in names]
    return f"the fastest{_at(budget)}, {listing(told)}" if told else ""


def _ratios(rows: pd.DataFrame) -> str:
    """A label's ratios by batch at its largest budget, with the intervals that are not narrow."""
    rows = rows[rows["budget"] == max(set(rows["budget"]), key=budget_order)].sort_values("batch")
    told = []
    for _, row in rows.iterrows():
        wide = row["ratio_high"] - row["ratio_low"] > _NARROW * row["ratio"]
        told.append(ratio(row["ratio"]) + (f" [{ratio(row['ratio_low'])}, {ratio(row['ratio_high'])}]" if wide else ""))
    return " / ".join(told)


def _worst(choice: Choice) -> str:
    return f"at worst {_lost(choice)}"


def _lost(choice: Choice) -> str:
    return max(choice.found, key=lambda each: each.loss).words


def _steps(speed: Speed) -> pd.DataFrame:
    rows = speed.table
    rows = rows[(rows["bench"] == "decode") & (rows["stage"] == STEP) & (rows["status"] == "ok")]
    return rows[rows["ratio"].notna()]


def _same(rows: pd.DataFrame, choice: Choice) -> pd.DataFrame:
    """The steps of the very configuration; a budget in bytes is timed at the tokens that it came to."""
    budget = choice.text if choice.is_native else str(choice.tokens)
    return rows[(rows["label"] == choice.label) & (rows["budget"] == budget) & (rows["params"] == choice.params)]


def _same_params(scored: Mapping[str, Choice], rows: pd.DataFrame) -> bool:
    return set(rows["params"]) == {scored[rows["label"].iloc[0]].params}
