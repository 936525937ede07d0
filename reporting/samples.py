"""Show stored answers side by side: prompts that full attention answers better than a method, in both wordings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from longdecode.reporting.runs import REFERENCE, Run, each

PER_SUITE = 2
_HEAD, _TAIL = 260, 80
_COLUMNS = ("variant", "label", "task", "context", "budget", "seed", "sample_index", "score", "output_text")
_PROMPT = ["task", "context", "seed", "sample_index"]


@dataclass(frozen=True)
class Pair:
    """One prompt: what Full wrote and what a variant wrote, each with its score."""

    variant: str
    budget: str
    task: str
    context: int
    index: int
    full: str
    full_score: float
    text: str
    score: float


def pairs(run: Run, suite: str) -> list[Pair]:
    """Return the prompts of a suite on which variants lose most, one a variant, of those whose texts are stored."""
    found: list[Pair] = []
    for model in sorted(path for path in (run.folder / "records").glob("*") if path.is_dir()):
        texts = list(_stored(model, suite))
        if texts:
            found += _worst(pd.concat(texts))
    return sorted(found, key=lambda pair: pair.score - pair.full_score)[:PER_SUITE]


def _stored(model: Path, suite: str) -> Iterator[pd.DataFrame]:
    """Yield the stored texts of a suite, one table a file; most records keep none."""
    for path in sorted(model.glob(f"*/{suite}.parquet")) + sorted(model.glob(f"*/{suite}.[0-9]*.parquet")):
        names = [name for name in _COLUMNS if name in pq.read_schema(path).names]
        table = pq.read_table(path, columns=names, filters=[("output_text", "!=", "")]).to_pandas()
        yield table.rename(columns={"label": "variant"}).dropna(subset=["output_text", "score"])


def _worst(texts: pd.DataFrame) -> list[Pair]:
    full = texts[texts.variant == REFERENCE][[*_PROMPT, "output_text", "score"]]
    both = texts[texts.variant != REFERENCE].merge(full, on=_PROMPT, suffixes=("", "_full"))
    lost = both[both.score < both.score_full].sort_values(["score", "context"])
    return [
        Pair(
            r.variant,
            r.budget,
            r.task,
            r.context,
            r.sample_index,
            cut(r.output_text_full),
            r.score_full,
            cut(r.output_text),
            r.score,
        )
        for r in lost.drop_duplicates("variant").pipe(each)
    ]


def cut(text: str) -> str:
    """Return a text whole, or its head and tail."""
    text = text.strip()
    return text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD].rstrip()} […] {text[-_TAIL:].lstrip()}"
