"""Set each printed table beside the texts of this run that stand for its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longdecode.evals.records import Record
from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import (
    NOT_MEASURED,
    Block,
    Cells,
    Compared,
    Comparison,
    Prose,
    agreement,
    compared,
)
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.tokenswift.texts import Value, fulls, longest, standing, texts, value, written

PRINTED_MODEL, PRINTED_PROMPT = "llama3.1-8b", 4096

_TEXT_SHOWN = 12_000
"""Characters of a text's beginning, and of its end, that stand beside the pages."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """One printed table: each row beside the texts whose label, sampler and prompt the words name for it.

    ``words.yaml`` maps, under ``tables.<table>``, a value of ``key`` to the label, sampler and prompt that stand for
    it; ``default`` of the table, then of all tables, fills in what a row leaves out. Where a row gives no number of
    tokens, whole texts count, and ``tokens`` keeps them equally long: the share of distinct n-grams falls with length.
    A row's ``note`` stands beside what was measured.

    A row without a text stands folded below, with what is missing: ``absent`` maps a setting to it where no run has it.

    Args:
        table: of published.yaml.
        key: the column of its keys that tells settings apart, or several, whose values are joined by a comma. The
            length of the prompt, ``prefill``, is matched by the texts themselves.
        columns: what is compared.
    """

    table: str
    key: str | tuple[str, ...]
    columns: tuple[str, ...]

    def __call__(self, inputs: PaperInputs) -> list[Block]:
        """Return a comparison for each model of the run, or what is in print and the command."""
        words = inputs.words("tables")[self.table]
        records, theirs = written(inputs.folder), fulls(inputs.folder)
        models = list(dict.fromkeys(r.model for r in records)) or [""]
        blocks: list[Block] = [Prose(words["text"])] if words.get("text") else []
        any_found = False
        table = inputs.published.tables[self.table]
        heads = [name.replace("_", " ") for name in table.keys] + (["Column"] if len(self.columns) > 1 else [])
        for model in models:
            mine = [r for r in records if r.model == model]
            rows = [row for printed in self._printed(inputs) for row in self._rows(inputs, printed, mine, theirs)]
            measured = [row for row in rows if row.verdict != NOT_MEASURED]
            if measured or (model == models[-1] and not any_found):
                any_found |= bool(measured)
                caption = f"{table.section}. {words['caption']} {about(inputs, model)}".strip()
                absent = [row for row in rows if row.verdict == NOT_MEASURED and row.published != wording.DASH]
                blocks.append(Comparison(caption, heads, measured or rows, table.unit))
                if measured and absent:
                    fold = inputs.words("tables")["open"].format(
                        n=wording.plural(len(absent), "printed figure"), section=table.section
                    )
                    blocks.append(Comparison(f"{fold} {about(inputs, model)}", heads, absent, table.unit, fold))
        return (
            blocks
            if any_found
            else [*blocks, inputs.missing(f"{words['caption']} No text stands for a row", "generate")]
        )

    @property
    def _key(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else self.key

    def _printed(self, inputs: PaperInputs) -> Sequence[Mapping[str, Any]]:
        table = inputs.published.tables[self.table]
        only = {name: known for name, known in (("model", PRINTED_MODEL), ("prefill", PRINTED_PROMPT))
                if name in table.keys and name not in self._key}  # fmt: skip
        return inputs.published.rows(self.table, **only)

    def _rows(
        self, inputs: PaperInputs, printed: Mapping[str, Any], mine: Sequence[Record], theirs: Mapping[Any, Record]
    ) -> list[Compared]:
        words, keys = inputs.words("tables"), inputs.published.tables[self.table].keys
        known = words[self.table].get("rows", {})
        setting = ", ".join(str(printed[name]) for name in self._key if name != "prefill")
        stands = words["default"] | words[self.table].get("default", {}) | (known.get(setting) or {})
        prompt = int(printed["prefill"]) if "prefill" in self._key else stands["prompt"]
        labels = [stands["label"]] if isinstance(stands["label"], str) else stands["label"]
        drawn = [r for r in mine if r.task == stands["sampler"] and r.label in labels]
        fits = [r for r in drawn if r.context == prompt]
        if "tokens" in stands:
            fits = [r for r in fits if r.measures["tokens"] == stands["tokens"]]
        fits = standing(fits, labels)
        if setting and setting not in known:
            fits = []
            absent = str(words[self.table].get("absent", {}).get(setting, words["no_run"]))
        elif not drawn:
            absent = words["no_text"].format(labels=wording.listing(labels), sampler=stands["sampler"])
        elif not fits:
            absent = words["no_prompt"].format(labels=wording.listing(labels), prompt=f"{prompt:,}")
        else:
            absent = words["too_short"].format(label=fits[0].label, tokens=f"{longest(fits):,}")
        past = int(printed.get("generated") or longest(fits))
        rows = []
        for column in self.columns:
            of = [_shown(printed[name]) for name in keys] + (
                [column.replace("_", " ")] if len(self.columns) > 1 else []
            )
            figure = inputs.published.figure(self.table, column, **{name: printed[name] for name in keys})
            found = value(fits, theirs, column, past)
            reason = absent if found is None else why(column)
            if found is not None:
                told = [fits[0].label] * (len(labels) > 1) + ([str(stands["note"])] if "note" in stands else [])
                reason = "; ".join([*told, reason])
            rows.append(compared_value(of, figure, found, reason, inputs.results.confidence))
        return rows


def about(inputs: PaperInputs, model: str) -> str:
    """Return the end of a caption: the model in words where the run scored it too."""
    return inputs.about(model, None) if model in inputs.results.models else f"Model: {model}." if model else ""


def why(column: str) -> str:
    """Return why a column differs from print whatever the method does."""
    if column == "speedup":
        return "other model; our baseline is a captured step, theirs an eager loop"
    return "other unit of n-grams" if column.startswith("distinct") or column == "average" else "other model"


def compared_value(
    of: Sequence[str], figure: Any, found: Value | None, reason: str, confidence: float, digits: int = 2
) -> Compared:
    """Return a row: the mean over prompts, and its interval."""
    if found is None:
        return compared(of, figure, reason=reason)
    seen = found.estimate(confidence)
    verdict, level = agreement(None if figure is None else figure.value, seen.value, seen.low, seen.high)
    bounds = found.bounds(confidence, digits)
    return compared(of, figure, wording.number(seen.value, digits), bounds, verdict, level, reason)


def growth(inputs: PaperInputs) -> list[Block]:
    """Return time by position of every label, host memory, and how the host was asked."""
    words, blocks, theirs = inputs.words("growth"), list[Block](), fulls(inputs.folder)
    places = dict.fromkeys((r.model, r.task, r.context) for r in written(inputs.folder) if "+" not in r.label)
    for model, sampler, prompt in places:
        mine = [r for r in written(inputs.folder, model=model, task=sampler, context=prompt) if "+" not in r.label]
        if not mine or longest(mine) < 4 * prompt:
            continue
        marks = sorted({int(name.split("_")[1]) for r in mine for name in r.measures if name.endswith("_steps")
                        and name.startswith("at_")})  # fmt: skip
        rows = []
        for label in dict.fromkeys(r.label for r in mine):
            own = standing(mine, label)
            own = [r for r in own if r.measures["tokens"] == longest(own)]
            for past in marks:
                seen = [value(own, theirs, column, past) for column in ("minutes", "ms_per_token", "speedup", "alpha")]
                host = value(own, theirs, f"at_{past}_host_mib", longest(own))
                if seen[0] is not None:
                    shown = [
                        wording.DASH if v is None else wording.number(v.mean, d)
                        for v, d in zip(seen, (2, 3, 2, 2), strict=True)
                    ]
                    rows.append(
                        [label, f"{past:,}", *shown, wording.DASH if host is None else wording.number(host.mean, 0)]
                    )
        graph = all(r.measures.get("cuda_graph") for r in mine)
        looks = max(int(r.measures["looks_every_steps"]) for r in mine)
        caption = words["caption"].format(sampler=sampler, prompt=f"{prompt:,}", about=about(inputs, model))
        heads = ("Label", "Tokens", "Minutes", "ms a token", "Over Full", "alpha", "Host, MiB")
        blocks.append(Cells(caption, heads, rows, frozenset(range(1, 7))))
        blocks.append(Prose(words["graph" if graph else "eager"].format(looks=looks)))
    return [Prose(words["text"]), *(blocks or [inputs.missing(words["missing"], "generate")])]


def minutes(inputs: PaperInputs) -> list[Block]:
    """Return figure 1: minutes since the start of the text, autoregressive and drafted."""
    words, theirs, rows = inputs.words("minutes"), fulls(inputs.folder), list[Compared]()
    stands = inputs.words("tables")["default"]
    for printed in inputs.published.rows("figure_1"):
        for column, label in (("autoregressive", "full"), ("tokenswift", stands["label"])):
            own = standing(written(inputs.folder, task=stands["sampler"], context=stands["prompt"]), label)
            past = printed["generated"]
            found = value([r for r in own if r.measures["tokens"] == longest(own)], theirs, "minutes", past)
            figure = inputs.published.figure("figure_1", column, generated=past)
            of, confidence = [f"{past:,}", column], inputs.results.confidence
            reason = why("speedup") if found else words["absent"]
            if found and column != "autoregressive":
                reason = f"{own[0].label}; {reason}"
            rows.append(compared_value(of, figure, found, reason, confidence))
    measured = any(row.verdict != NOT_MEASURED for row in rows)
    table = Comparison(words["caption"], ("Tokens", "Column"), rows, "minutes")
    return [Prose(words["text"]), table, *([] if measured else [inputs.missing(words["missing"], "generate")])]


def quality(inputs: PaperInputs) -> list[Block]:
    """Return diversity, repetition, Full's loss and exactness of every text, and those that were not written."""
    words, rows = inputs.words("quality"), []
    columns = ("tokens_per_step", "alpha", "beta", "distinct_1", "distinct_2", "distinct_3", "distinct_4",
               "distinct_2_window", "distinct_2_line", "repeated_8", "loss_full")  # fmt: skip
    for r in texts(inputs.folder):
        if "+" in r.label:
            continue
        same = r.measures.get("identical")
        exact = "" if r.status != "ok" else "reference" if same is None else "identical"
        if same == 0:
            exact = f"to token {int(r.measures['same_tokens']):,}"
        shown = [wording.number(r.measures.get(name), 3) for name in columns]
        done = r.status == "ok"
        wrote, book = (f"{int(r.measures['tokens']):,}", str(r.sample_index + 1)) if done else ("", "")
        rows.append(
            [
                r.model,
                r.label,
                r.task,
                f"{r.context:,}",
                book,
                wrote,
                r.budget,
                *shown,
                exact or f"{r.status}: {r.reason}",
            ]
        )
    heads = (
        "Model",
        "Label",
        "Sampler",
        "Prompt",
        "Book",
        "Tokens",
        "Budget",
        *(name.replace("_", " ") for name in columns),
        "As Full's",
    )
    table = Cells(words["caption"], heads, rows, frozenset({3, 4, 5, *range(7, 7 + len(columns))}))
    if not rows:
        return [Prose(words["text"]), inputs.missing(words["missing"], "generate")]
    return [Prose(words["text"]), table, *_diversity(inputs, words["longest"])]


def _diversity(inputs: PaperInputs, caption: str) -> list[Block]:
    """Return every Distinct-n of the longest texts, folded."""
    done = [r for r in written(inputs.folder) if "+" not in r.label]
    if not done:
        return []
    most = longest(done)
    names = [f"distinct_{n}{kind}" for kind in ("", "_window", "_line") for n in (1, 2, 3, 4)]
    rows = [
        [r.model, r.label, r.task, f"{r.context:,}", *(wording.number(r.measures.get(name), 3) for name in names)]
        for r in done
        if r.measures["tokens"] == most
    ]
    heads = ("Model", "Label", "Sampler", "Prompt", *(name.replace("_", " ") for name in names))
    said = caption.format(tokens=f"{most:,}")
    return [Cells(said, heads, rows, frozenset(range(3, len(heads))), fold=said)]


def law(inputs: PaperInputs) -> list[Block]:
    """Return the total variation of the printed rule from the target."""
    words, rows = inputs.words("law"), []
    for r in written(inputs.folder):
        if "tv_27" in (m := r.measures):
            for paths in (27, 47):
                bounds = wording.interval(m[f"tv_{paths}_low"], m[f"tv_{paths}_high"], 3)
                shown = [wording.number(m[name], 3) for name in ("q_first", f"tv_{paths}")]
                drawn = [wording.number(m[name], 3) for name in (f"tv_{paths}_drawn", "tv_exact_drawn")]
                rows.append([r.model, r.task, str(paths), *shown, bounds, *drawn, f"{int(m['law_positions']):,}"])
    heads = ("Model", "Sampler", "Paths", "Mean q of the draft", "Total variation", "Interval", "Drawn",
             "Exact rule, drawn", "Positions")  # fmt: skip
    table = Cells(words["caption"], heads, rows, frozenset({2, 3, 4, 6, 7, 8}))
    return [Prose(words["text"]), table if rows else inputs.missing(words["missing"], "generate")]


def one_text(inputs: PaperInputs) -> list[Block]:
    """Return the beginning and the end of one text, and write more of both beside the pages; records have it whole."""
    words = inputs.words("text")
    found = [r for r in written(inputs.folder) if r.output_text]
    if not found:
        return [Prose(words["text"]), inputs.missing(words["missing"], "generate")]
    most = longest(found)
    whole = sorted((r for r in found if r.measures["tokens"] == most), key=lambda r: r.method != inputs.spec.method)
    r = whole[0]
    name = f"{r.model}-{r.label}-{r.task}-{r.context}-{r.sample_index}.txt"
    folder = inputs.writer.folder.parent / "texts"
    folder.mkdir(parents=True, exist_ok=True)
    whole_text = r.output_text or ""
    short = len(whole_text) <= 2 * _TEXT_SHOWN
    some = whole_text if short else f"{whole_text[:_TEXT_SHOWN]}\n\n[...]\n\n{whole_text[-_TEXT_SHOWN:]}"
    (folder / name).write_text(some, encoding="utf-8")
    about = words["about"].format(label=r.label, model=r.model, sampler=r.task, tokens=f"{most:,}", name=name)
    text = " ".join((r.output_text or "").replace("`", "'").split())
    return [Prose(words["text"]), Prose(about), Prose(f"{text[:1200]} [...]"), Prose(f"[...] {text[-1200:]}")]


def _shown(given: object) -> str:
    return f"{given:,}" if isinstance(given, int) else str(given)
