"""Compare texts of whole runs: lengths of the prompt, numbers of n-grams, what the release does otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from longdecode.evals.records import Record
from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import Block, Cells, Compared, Comparison, Listing, MissingResult, Prose
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.tokenswift.exactness import LENGTH
from longdecode.reporting.papers.tokenswift.texts import Value, fulls, run_of, standing, value, written

_HEADS = ("Sampler", "Prompt", "Label", "Rows", "n", "Tokens a step", "alpha", "beta", "Over Full", "Interval",
          "Minutes", "Full's", "Repeated 8-grams, %", "Full's, %", "Distinct-4", "Full's", "Full's loss")  # fmt: skip
_NUMERIC = frozenset(range(len(_HEADS))) - {0, 2, 9}


def prompts(inputs: PaperInputs) -> list[Block]:
    """Return the texts of full length by the length of their prompt, and the lengths in print without one."""
    words, found = inputs.words("prompts"), list[list[Record]]()
    whole = [r for r in written(inputs.folder) if r.measures["tokens"] == LENGTH and r.label != "full"]
    for at in dict.fromkeys((r.model, r.task, r.label) for r in whole):
        mine = [r for r in whole if (r.model, r.task, r.label) == at]
        found += [[r for r in mine if r.context == prompt] for prompt in sorted({r.context for r in mine})]
    blocks: list[Block] = [Prose(words["text"])]
    if found:
        found.sort(key=lambda own: (own[0].model, own[0].task, own[0].label, own[0].context))
        models = wording.listing(list(dict.fromkeys(own[0].model for own in found)))
        caption = words["caption"].format(models=models, tokens=f"{LENGTH:,}")
        blocks.append(Cells(caption, _HEADS, [_row(inputs, own, LENGTH) for own in found], _NUMERIC))
    stands = inputs.words("tables")["default"]["sampler"]
    has = {own[0].context for own in found if own[0].task == stands}
    printed = sorted({int(row["prefill"]) for row in inputs.published.rows("speedups")})
    lacking = [prompt for prompt in printed if prompt not in has]

    def fits(run: Mapping[str, Any]) -> bool:
        return bool(set(run["prompts"]) & set(lacking)) and run["tokens"] >= LENGTH and stands in run["samplers"]

    if lacking:
        lengths = wording.listing([f"{prompt:,}" for prompt in lacking])
        blocks += _holes(inputs, words["missing"].format(tokens=f"{LENGTH:,}", prompts=lengths), fits)
    return blocks


def ngrams(inputs: PaperInputs) -> list[Block]:
    """Return figure 4, which could be read in words alone: what more n-grams change, beside ours."""
    words, at = inputs.words("ngrams"), _texts(inputs, "ngrams")
    few, many = (at.get((label, inputs.words("tables")["default"]["sampler"])) for label in words["compared"])
    theirs, rows = fulls(inputs.folder), list[Compared]()
    for column, printed in words["claims"].items():
        seen = [value(own or [], theirs, column, words["tokens"]) for own in (few, many)]
        rows.append(_claimed(column, printed, seen[0], seen[1]))
    table = Comparison(words["claims_caption"], ("Column",), rows)
    return [Prose(words["text"]), *_rows_of(inputs, "ngrams", at), table, *_lacking(inputs, "ngrams", at)]


def released(inputs: PaperInputs) -> list[Block]:
    """Return what the printed rule, the release's penalty and its floor of 20 tokens change."""
    words, at = inputs.words("released"), _texts(inputs, "released")
    return [Prose(words["text"]), *_rows_of(inputs, "released", at), *_lacking(inputs, "released", at)]


def unwritten(inputs: PaperInputs) -> list[Block]:
    """Return the configured runs that have no file of texts, each with its command."""
    words = inputs.words("unwritten")
    found = {name: run for name, run in _configured(inputs).items() if not _file(inputs, name).exists()}
    if not found:
        return []
    items = [f"`{name}`: {wording.listing([*run.get('labels', ()), *run.get('drafters', ())])} on {run['model']}."
             for name, run in found.items()]  # fmt: skip
    return [Prose(words["text"]), Listing(items), MissingResult(words["missing"], _command(inputs, found))]


def _texts(inputs: PaperInputs, part: str) -> dict[tuple[str, str], list[Record]]:
    """Return the texts that a part names, by label and sampler: of several, those of the length and of the job named.

    A job that wrote more of the part's texts goes first, so that speeds are over one and the same text of Full.
    """
    words, prompt = inputs.words(part), inputs.words("tables")["default"]["prompt"]
    named = [
        r for r in written(inputs.folder, context=prompt)
        if r.label in words["labels"] and r.task in words["samplers"] and f"at_{words['tokens']}_steps" in r.measures
    ]  # fmt: skip
    jobs = Counter(run for run, *_ in {(run_of(inputs.folder, r), r.label, r.task) for r in named})
    named.sort(key=lambda r: jobs[run_of(inputs.folder, r)])
    found = {}
    for sampler in words["samplers"]:
        for label in words["labels"]:
            own = [r for r in named if (r.label, r.task) == (label, sampler)]
            same = [r for r in own if r.measures["tokens"] == words["tokens"]]
            if own:
                found[label, sampler] = standing(same or own, label)
    return found


def _rows_of(inputs: PaperInputs, part: str, at: Mapping[tuple[str, str], Sequence[Record]]) -> list[Block]:
    words = inputs.words(part)
    if not at:
        return []
    models = wording.listing(list(dict.fromkeys(own[0].model for own in at.values())))
    caption = words["caption"].format(models=models, tokens=f"{words['tokens']:,}")
    return [Cells(caption, _HEADS, [_row(inputs, own, words["tokens"]) for own in at.values()], _NUMERIC)]


def _row(inputs: PaperInputs, own: Sequence[Record], past: int) -> list[str]:
    """Return the cells of texts of one label, sampler and prompt at ``past`` tokens."""
    first, theirs = own[0], fulls(inputs.folder)
    full = [theirs[id(r)] for r in own if id(r) in theirs]

    def shown(records: Sequence[Record], column: str, digits: int = 2, factor: float = 1.0) -> str:
        all_ngrams = column == "beta" and first.method == "ngram"
        seen = None if all_ngrams else value(records, theirs, column, past)
        return wording.number(None if seen is None else factor * seen.mean, digits)

    speed = value(own, theirs, "speedup", past)
    return [
        first.task, f"{first.context:,}", first.label, f"{first.measures['rows']:.0f}", str(len(own)),
        *(shown(own, column) for column in ("tokens_per_step", "alpha", "beta", "speedup")),
        speed.bounds(inputs.results.confidence) if speed else "",
        *(shown(records, "minutes") for records in (own, full)),
        *(shown(records, "repeated_8", 0, 100.0) for records in (own, full)),
        *(shown(records, "distinct_4") for records in (own, full)),
        shown(own, "loss_full"),
    ]  # fmt: skip


def _claimed(column: str, printed: str, few: Value | None, many: Value | None) -> Compared:
    """Return a row of figure 4: the order in print in words, ours as two numbers."""
    of, said = [column.replace("_", " ")], f"k = 5 {printed} k = 20"
    if few is None or many is None:
        return Compared(of, said, "paper", wording.DASH, "", "not measured", "muted", "no text of one of the two")
    agrees = (few.mean > many.mean) == (printed == ">")
    ours = " and ".join(wording.number(each.mean, 2) for each in (few, many))
    verdict, level = ("same order", "shown") if agrees else ("other order", "worse")
    interval = "1 prompt" if min(few.prompts, many.prompts) < 2 else ""
    return Compared(of, said, "paper", ours, interval, verdict, level, "other model")  # type: ignore[arg-type]


def _lacking(inputs: PaperInputs, part: str, at: Mapping[tuple[str, str], Sequence[Record]]) -> list[Block]:
    """Return the hole that texts named and not written leave."""
    words = inputs.words(part)
    lacking = [(label, sampler) for label in words["labels"] for sampler in words["samplers"]
               if (label, sampler) not in at and [label, sampler] not in words.get("without", [])]  # fmt: skip
    if not lacking:
        return []
    labels, samplers = {label for label, _ in lacking}, {sampler for _, sampler in lacking}

    def fits(run: Mapping[str, Any]) -> bool:
        return bool(labels & set(run.get("labels", ())) and samplers & set(run["samplers"]))

    told = wording.listing([f"{label} drawn by {sampler}" for label, sampler in lacking])
    return _holes(inputs, words["missing"].format(texts=told), fits)


def _holes(inputs: PaperInputs, what: str, fits: Callable[[Mapping[str, Any]], bool]) -> list[Block]:
    """Return a stated gap with the command of the configured runs that fit and have no texts yet, else of all texts."""
    runs = {name: run for name, run in _configured(inputs).items() if fits(run) and not _file(inputs, name).exists()}
    return [MissingResult(f"{what}.", _command(inputs, runs))] if runs else [inputs.missing(what, "generate")]


def _configured(inputs: PaperInputs) -> Mapping[str, Mapping[str, Any]]:
    found: Mapping[str, Mapping[str, Any]] = (inputs.results.config.get("generation") or {}).get("runs") or {}
    return found


def _file(inputs: PaperInputs, run: str) -> Any:
    return inputs.folder / "generation" / f"{run}.parquet"


def _command(inputs: PaperInputs, runs: Mapping[str, Any]) -> str:
    profile = inputs.results.profile
    files = " ".join(f"results/{profile}/generation/{run}.parquet" for run in runs)
    return f"snakemake --cores 8 --config profile={profile} -- {files}"
