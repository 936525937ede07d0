"""Write the README's lines on RetroAttention, NOSA and TokenSwift, with what the committed results have of each."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import yaml

from longdecode.evals.records import Record
from longdecode.reporting.figure import FigureWriter
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.inputs import MOST_RESAMPLES
from longdecode.reporting.papers.nosa.locality import lead_of
from longdecode.reporting.papers.nosa.quality_targets import over_untrained
from longdecode.reporting.papers.registry import papers_of
from longdecode.reporting.papers.tokenswift import texts
from longdecode.reporting.results import ReportError, Results, load_results
from longdecode.reporting.wording import listing, number, ratio, short_tokens

RESULTS = Path("results")
TOKENS_A_STEP = 4.2
"""Of TokenSwift with an acceptance of 0.8 in print: the project's stated condition for a composed speedup."""

BUDGETS = {"256": "256 tokens", "1024": "1,024 tokens", "bytes=0.25": "25 % of Full's bytes"}

ANSWERS_AT = {"smollm2-long": "2,048", "miniature": "512"}
"""Tokens at which Quest has 60 to 95 % of Full's score, so that there is something to win."""

MEMORY_CONTEXT = 65536
"""Tokens at which throughput at equal device memory is told."""

WHOLE_TREES = ("tokenswift", "tokenswift_lean")
"""Labels that stand for TokenSwift: print's tree with n-grams, and the smaller one; others are points of a sweep."""

BOOKS_RUN = "books"
"""The run of TokenSwift's texts that has several prompts."""

CONFIDENCE = 0.95
"""Of the interval over its books."""

_OTHER_PAGES = {"retro": ("reports/retro/paper-retro.html",), "nosa": ("reports/offload/paper-nosa.html",)}


def paper_retro(real: Results) -> str:
    """Return RetroAttention's line: its step over Quest's, its loss on text and its answers beside Quest's."""
    speed = _speed("retro")
    steps = speed[(speed["model"] == "llama3-8b") & (speed["stage"] == "step") & (speed["context"] == 131072)]
    over = [f"{listing(_over_quest(steps[steps['batch'] == batch]))} ms at batch {batch}" for batch in (1, 4)]
    context, gaps = _text_gaps(real)
    real_at, mini_at = ANSWERS_AT["smollm2-long"], ANSWERS_AT["miniature"]
    answers = listing(_answer_gaps("smollm2-long", "mini_longgen"))
    return line(
        "RetroAttention (arXiv 2508.09001)",
        "0.5 to 3.9 points over Quest on LongGenBench (Llama-3.1-8B); no code of it was released",
        f"a step takes longer than Quest's, with windows of 2, 4 and 8: {', '.join(over)} (8B shape, 128K tokens)",
        f"minus Quest. SmolLM2, a book at {short_tokens(context)}, nats a token: {listing(gaps)}. 15 and 45 answers "
        f"after 4K tokens, points: SmolLM2, {real_at} tokens read, {answers}; "
        f"the miniature, {mini_at} tokens read, {_answer_gaps('miniature', 'mini_longgen')[-1]}",
        "retro",
        "reports/real/paper-retro.html",
    )


def paper_nosa() -> str:
    """Return NOSA's line: throughput at equal device memory, and its fork beside InfLLM-V2's."""
    speed = _speed("offload")
    speed = speed[speed["bench"] == "offload"]  # no choices of the forks themselves
    steps = speed[(speed["stage"] == "step") & (speed["status"] == "ok")].drop_duplicates(["context", "label"])
    at = steps.pivot(index="label", columns="context", values="ratio")
    least = int(at.columns.min())

    def both(label: str) -> str:
        return f"{ratio(at[MEMORY_CONTEXT][label])} and {ratio(at[least][label])}"

    contexts = " and ".join(f"{short_tokens(each)} ({_memory(speed, each)})" for each in (MEMORY_CONTEXT, least))
    means = ", ".join(
        f"{name}{ratio(at[MEMORY_CONTEXT][label])}"
        for name, label in (("", "nosa_overlap32"), ("InfLLM-V2 ", "infllm2_overlap32"))
    )
    forks = " and ".join(ratio(at[MEMORY_CONTEXT][label]) for label in ("nosa_fork", "nosa_fork32"))
    return line(
        "NOSA (arXiv 2510.13602)",
        "up to 5.04 times Full at equal device memory; steps share 94.4 % of their blocks, InfLLM-V2's 88.9 % (1B)",
        f"over Full at equal device memory, at {contexts}: {both('nosa_offload')}, InfLLM-V2 "
        f"{both('infllm2_offload')}, ShadowKV {both('shadowkv')}; with spare slots and attention beside the fetch, at "
        f"{short_tokens(MEMORY_CONTEXT)}, {means} (NOSA-8B's shape, random weights, hit rates as in print). At our "
        f"forks' hit rates {forks} without and with spare slots. {_own_choices()}",
        _forks(),
        "nosa",
    )


def _memory(speed: pd.DataFrame, context: int) -> str:
    """Return the device memory for keys and values that every label had at a context."""
    (found,) = {json.loads(params)["memory_bytes"] for params in speed.loc[speed["context"] == context, "params"]}
    return f"{found / 2**30:g} GiB"


def paper_tokenswift() -> str:
    """Return TokenSwift's line: texts end to end, its step composed with the acceptance in print, and its heads."""
    speed = _speed("tokenswift")
    at = speed[(speed["bench"] == "decode") & (speed["context"] == 102400) & (speed["batch"] == 1)]
    plain = at[(at["label"] == "full") & (at["stage"] == "step")]["median_us"].iloc[0]
    whole = at[at["stage"] == "speculative_step"].set_index("label")["median_us"]
    bare, ngrams = (ratio(TOKENS_A_STEP * plain / whole[label]) for label in ("tokenswift_k0", "tokenswift"))
    return line(
        "TokenSwift (arXiv 2502.18890)",
        "100K tokens 3.1 to 3.4 times as fast as an eager loop of 172 ms a token (LLaMA3.1-8B), by a rule of "
        "acceptance that is not the target's law",
        f"{_end_to_end()}. Composed on the 8B shape, drawn greedily, were 0.8 of its drafts kept (print: 0.40 "
        f"without n-grams): {bare}, {ngrams} with n-grams",
        f"texts are plain decoding's, token for token in float32, with {_drafters()} other methods as drafters too; "
        f"{_in_bfloat16()}. {_heads()}",
        "tokenswift",
    )


def _drafters() -> int:
    """Return how many methods of the registry drafted texts in float32, all of which are plain decoding's.

    Raises:
        ValueError: a text is another one.
    """
    found = pd.read_csv(RESULTS / "tokenswift/exact_texts.csv")
    found = found[found["label"].str.contains("+", regex=False) & (found["status"] == "ok")]
    if (found["identical"] != found["batch"]).any():
        raise ValueError("tokenswift/exact_texts.csv: a drafted text in float32 is not plain decoding's")
    return int(found["label"].str.split("+").str[0].nunique())


def _in_bfloat16() -> str:
    """Say how many tokens of the printed tree's long text float32 draws alike, beside Full's own of the same job."""
    table = pd.read_csv(RESULTS / "tokenswift/replay.csv")
    totals = table[table["run"] == "printed"].groupby("label")[["drawn", "tokens"]].sum()
    shares = 100 * totals["drawn"] / totals["tokens"]
    own, full = (number(shares[label], 1) for label in ("tokenswift", "full"))
    tokens = f"{totals['tokens']['tokenswift']:,}"
    return f"float32 draws {own} % of a bfloat16 text's first {tokens} tokens alike, {full} % of Full's own"


def _heads() -> str:
    """Say how often the shipped heads of SmolLM2 are right on unseen books, beside a table of pairs."""
    found = pd.read_csv(RESULTS / "tokenswift/heads/smollm2-long/chained/zero/accuracy.csv")
    own, pairs_ = ([number(100 * value, 1) for value in found[name]] for name in ("top1", "pair_top1"))
    return f"Heads of SmolLM2 on unseen books: {listing(own)} % right, a table of pairs {listing(pairs_)}"


def _end_to_end() -> str:
    """Say how fast the longest texts were written, over Full's in the same runs, with the penalty and without."""
    folder = RESULTS / "tokenswift"
    swift = texts.written(folder, method="tokenswift")
    past = texts.longest(swift)
    speeds: dict[str, list[float]] = {"minp": [], "minp_plain": []}
    others, repeated = list[float](), list[float]()
    for r in swift:
        over = texts.value([r], texts.fulls(folder), "speedup", past)
        if over is not None and r.label not in WHOLE_TREES:
            others.append(over.mean)
        elif over is not None and r.task in speeds:
            speeds[r.task].append(over.mean)
            if r.task == "minp_plain":
                repeated.append(100 * r.measures["repeated_8"])
    penalised, bare = (" to ".join(map(ratio, (min(found), max(found)))) for found in speeds.values())
    said = f" ({ratio(min(others))} to {ratio(max(others))} by other trees and caches of the draft)" if others else ""
    again = " to ".join(number(share, 0) for share in (min(repeated), max(repeated)))
    return (
        f"times Full's speed, SmolLM2, {past:,} tokens: {penalised} with print's penalty"
        f"{said}, {bare} without it, where "
        f"{again} % of the text's 8-grams stood before{_rivals(folder, past)}{_books(folder, swift)}"
    )


def _rivals(folder: Path, past: int) -> str:
    """Say how fast the rivals of print's table 3 wrote texts of the same length, each with its sampler, or nothing."""
    said = []
    for name, label, drawn in (
        ("Medusa in two passes", "medusa_2pass", "minp"),
        ("TriForce", "triforce", "minp_plain"),
    ):
        mine = texts.written(folder, label=label, task=drawn)
        if (over := texts.value(mine, texts.fulls(folder), "speedup", past)) is not None:
            said.append(f"{name} {ratio(over.mean)} {'with' if drawn == 'minp' else 'without'}")
    return f" ({', '.join(said)})" if said else ""


def _books(folder: Path, swift: Sequence[Record]) -> str:
    """Say how fast the texts of several books were written, with the penalty and without, or nothing."""
    mine = [r for r in swift if texts.run_of(folder, r) == BOOKS_RUN]
    past, said, prompts = texts.longest(mine), list[str](), 0
    for sampler in ("minp", "minp_plain"):
        over = texts.value([r for r in mine if r.task == sampler], texts.fulls(folder), "speedup", past)
        if over is None or over.prompts < 2:
            return ""
        said.append(f"{ratio(over.mean)} {over.bounds(CONFIDENCE)}")
        prompts = over.prompts
    return f"; {prompts} books, {past:,} tokens each: {said[0]} and {said[1]}"


def _forks() -> str:
    """Return the overlap and the look-ups of NOSA's fork beside those of InfLLM-V2's and of full attention."""
    found = pd.read_csv(RESULTS / "nosa" / "locality.csv")
    sides = [found[found["label"] == label] for label in ("nosa", "infllm2")]
    value, least, most = (number(each, 1, signed=True) for each in lead_of(sides[0], sides[1]))
    shares = [number(100 * side["gamma"].mean(), 1) for side in sides]
    table = pd.read_csv(RESULTS / "nosa" / "summary.csv")
    shown, losses = list[str](), list[float]()
    for name in ("nosa", "infllm2", "full"):
        mine = table[(table["model"] == f"fork-{name}") & (table["method"] == name) & (table["status"] == "ok")]
        mine = mine.set_index("task")
        asked = mine.loc[["ruler_niah_multikey_2", "ruler_niah_multivalue"], "value"]
        shown.append(" and ".join(number(100 * value, 1) for value in asked))
        losses.append(float(mine["loss"]["pg19_long_forced_1024"]))
    over = [number(loss - losses[2], 3, signed=True) for loss in losses]
    return (
        f"forks of SmolLM2 that read 1,024 of 4,096 tokens. Blocks shared {shares[0]} %, InfLLM-V2's {shares[1]} %: "
        f"{value} points [{least}, {most}]. RULER's multi-key 2 and multi-value {shown[0]} %, InfLLM-V2's fork "
        f"{shown[1]}, full attention {shown[2]}. Loss on books over full attention's {over[0]} nats, InfLLM-V2's "
        f"{over[1]}{_long_answers(table)}. On fresh prompts over "
        f"InfLLM-V2 without training, the closest of four such methods: {_leads('nosa-fresh')}. With "
        f"{_steps('nosa-long')} steps of training in place of {_steps('nosa')}, on other prompts: {_leads('nosa-long')}"
    )


def _steps(profile: str) -> str:
    """Return the optimiser steps of a profile's forks."""
    said = yaml.safe_load((RESULTS / profile / "config.yaml").read_text(encoding="utf-8"))
    return f"{said['adaptation']['defaults']['steps']:,}"


def _leads(profile: str) -> str:
    """Say how far NOSA's fork lies from the closest method without training in another run, as its page does.

    Raises:
        ReportError: that method is not InfLLM-V2 everywhere.
    """
    folder = RESULTS / profile
    results = load_results(folder / "config.yaml", folder)
    with tempfile.TemporaryDirectory() as scratch:
        papers = papers_of(results, folder, FigureWriter(Path(scratch), {}), lambda model, suite: "", str, {})
    inputs = next(paper.inputs for paper in papers if paper.name == "nosa")
    names = {"mini_recall": "`mini_recall`", "ruler": "RULER", "mini_longgen": "long answers", "pg19_long": "books"}
    rows = {name: over_untrained(inputs, suite) for suite, name in names.items()}
    if others := [name for name, row in rows.items() if not row.what.endswith(", infllm2")]:
        raise ReportError(f"{profile}: InfLLM-V2 is not the closest rival on {listing(others)}")
    return listing([f"{row.measured} {row.bounds} on {name}" for name, row in rows.items()])


def _own_choices() -> str:
    """Say what SmolLM2's forks reach by their own choices, at the largest budget and every context that was timed."""
    speed = _speed("offload")
    steps = speed[(speed["bench"] == "own_choices") & (speed["status"] == "ok") & (speed["label"] != "full")]
    steps = steps[(steps["budget_tokens"] == steps["budget_tokens"].max()) & (steps["op_sizes"] == "prompts=whole")]
    at = steps.pivot(index="label", columns="context", values="ratio").sort_index(axis=1, ascending=False)

    def every(label: str) -> str:
        return " and ".join(ratio(value) for value in at.loc[f"own_{label}"])

    return (
        f"SmolLM2's forks over books, by their own choices, at {' and '.join(map(short_tokens, at.columns))}: "
        f"{every('nosa_offload')}, InfLLM-V2 {every('infllm2_offload')}, ShadowKV {every('shadowkv')}; with spare "
        f"slots and attention beside the fetch {every('nosa_overlap32')}, InfLLM-V2 {every('infllm2_overlap32')}"
    )


def _long_answers(table: pd.DataFrame) -> str:
    """Say what the forks have of 45 answers in one text, NOSA's without its importances too; nothing where unscored."""
    rows = table[(table["task"] == "mini_longgen_45") & (table["status"] == "ok")]
    shares = rows.set_index(["model", "method"])["value"]
    wanted = [("fork-nosa", "nosa"), ("fork-infllm2", "infllm2"), ("fork-nosa", "nosa_no_importance")]
    full = sorted(rows.loc[rows["model"].str.startswith("fork-full") & rows["method"].eq("full"), "value"])
    if not full or not set(wanted) <= set(shares.index):
        return ""
    own, rival, bare = (number(100 * shares[key], 1) for key in wanted)
    dense = " to ".join(number(100 * value, 1) for value in dict.fromkeys((full[0], full[-1])))
    trained = f" ({len(full)} trainings)" if len(full) > 1 else ""
    return (
        f". 45 answers in one text: {own} % ({bare} % without importances), InfLLM-V2's fork {rival} % and, with full "
        f"attention, {dense} %{trained}"
    )


def _over_quest(steps: pd.DataFrame) -> list[str]:
    """Return what RetroAttention's step takes over Quest's, in milliseconds, by window."""
    times = steps.set_index("label")["median_us"]
    return [
        number((times[label] - times["quest"]) / 1e3, 2, signed=True) for label in ("retro", "retro_w4", "retro_w8")
    ]


def _text_gaps(real: Results) -> tuple[int, list[str]]:
    """Return RetroAttention's loss on text minus Quest's, with intervals, and where: the longest context with all."""
    suite, model = "fidelity", real.models[0]
    ran: dict[int, set[tuple[str, str]]] = {}
    for r in real.records:
        if r.suite == suite and r.model == model and r.status == "ok":
            ran.setdefault(r.context, set()).add((r.label, r.budget))
    wanted = {(label, budget) for label in ("retro", "quest") for budget in BUDGETS}
    context = max(context for context, cells in ran.items() if wanted <= cells)
    found = []
    for budget, name in BUDGETS.items():
        sides = [
            pairs.scored([
                r for r in real.records
                if (r.suite, r.context, r.label, r.budget, r.model) == (suite, context, label, budget, model)
            ])
            for label in ("retro", "quest")
        ]  # fmt: skip
        gap = pairs.difference(sides[0], sides[1], real.confidence, 10_000, "readme", budget)
        low, high = (number(side, 3, signed=True) for side in (gap.low, gap.high))
        found.append(f"{number(gap.value, 3, signed=True)} [{low}, {high}] at {name}")
    return context, found


def _answer_gaps(model: str, suite: str) -> list[str]:
    """Return RetroAttention's score on long look-up answers minus Quest's, by window, with intervals."""
    retro = _retro()
    budget = ANSWERS_AT[model].replace(",", "")
    sides = {
        label: pairs.scored([
            r for r in retro.records
            if (r.suite, r.model, r.label, r.budget) == (suite, model, label, budget)
        ])
        for label in ("quest", "retro", "retro_w4", "retro_w8")
    }  # fmt: skip
    place = (model, suite, 4096)  # seeds the draws as the page's are
    found = []
    for label, window in (("retro", 2), ("retro_w4", 4), ("retro_w8", 8)):
        gap = pairs.difference(sides[label], sides["quest"], retro.confidence, MOST_RESAMPLES, *place, label, budget)
        mean, low, high = (number(100 * side, 1, signed=True) for side in (gap.value, gap.low, gap.high))
        found.append(f"{mean} [{low}, {high}] with a window of {window}")
    return found


@functools.cache
def _retro() -> Results:
    return load_results(RESULTS / "retro" / "config.yaml", RESULTS / "retro")


def _speed(profile: str) -> pd.DataFrame:
    return pd.read_csv(RESULTS / profile / "speed.csv")


def line(paper: str, printed: str, speed: str, quality: str, name: str, page: str | None = None) -> str:
    """Return a row of the table of papers; a paper's pages and its note go by its name."""
    pages = dict.fromkeys((page or f"reports/{name}/paper-{name}.html", *_OTHER_PAGES.get(name, ())))
    places = [*(f"`{each}`" for each in pages), f"[how to repeat it](docs/reproduction-{name}.md)"]
    return f"| {paper} | {printed} | {speed} | {quality} | {', '.join(places)} |"
