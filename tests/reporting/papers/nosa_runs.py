"""Made-up runs of NOSA's forks, written as a job would leave them; loaded by path, as tests are no package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from longdecode.evals import curves, summary
from longdecode.evals.records import Record
from longdecode.evals.storage import write_records, write_table
from longdecode.reporting.figure import FigureWriter
from longdecode.reporting.identity import looks
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.registry import papers_of
from longdecode.reporting.results import load_results

ROOT = Path(__file__).resolve().parents[3]

METHODS = ("full", "infllm2", "nosa", "dma", "shadowkv")
Labels = Mapping[tuple[str, str], float]
"""A number of each fork and label."""


@dataclass(frozen=True)
class Run:
    """A made-up run: by fork and label, prompts right (the first ones) and the loss on the first of eight books."""

    profile: str
    seed: int
    prompts: int
    right: Labels
    loss: Labels = field(default_factory=dict)
    steps: int = 600


FIRST = Run(
    "first", 0, 24,
    {("full", "full"): 22, ("full", "shadowkv"): 10, ("nosa", "nosa"): 14, ("dma", "dma"): 1},
    {("full", "full"): 3.0, ("full", "shadowkv"): 3.02, ("nosa", "nosa"): 3.05},
)  # fmt: skip
"""Four prompts of 24 over ShadowKV, which cannot be told from none; 13 over DMA."""
FRESH = Run(
    "again", 1, 96, {("full", "full"): 60, ("full", "shadowkv"): 40, ("nosa", "nosa"): 60},
    {("full", "full"): 3.0, ("full", "shadowkv"): 3.2, ("nosa", "nosa"): 3.1},
)  # fmt: skip
"""20 prompts of 96 over ShadowKV, and as many as under full attention."""


def records(run: Run, provenance: Any) -> Iterator[Record]:
    base = Record(
        profile=run.profile, model="", method="", label="", params={}, suite="ruler", task="ruler_niah_multikey_2",
        task_version=1, metric="accuracy", unit="fraction", higher_is_better=True, data_source="generated",
        budget="full", budget_tokens=None, context=4096, batch=4, seed=run.seed, sample_index=0, status="ok", score=0.0,
        parts=[0.0], prompt_sha256="", provenance=provenance,
        measures={"kv_tokens_read": 1016.0, "kv_bytes_per_step": 1e6, "metadata_bytes_per_step": 0.0},
    )  # fmt: skip
    book = {
        "suite": "pg19_long", "task": "pg19_long_forced_1024", "metric": "loss_over_full", "unit": "nats/token",
        "higher_is_better": False, "data_source": "real", "score": 7.0, "parts": None,
    }  # fmt: skip
    for numbers, count in ((run.right, run.prompts), (run.loss, 8)):
        for (fork, label), value in numbers.items():
            mine: dict[str, Any] = {"model": f"fork-{fork}", "method": label, "label": label}
            mine |= {} if label == "full" else {"budget": "1024", "budget_tokens": 1024}
            for index in range(count):
                own: dict[str, Any] = {"sample_index": index, "prompt_sha256": f"{run.seed} {index}"}
                if numbers is run.right:
                    own |= {"score": float(index < value), "parts": [float(index < value)]}
                else:
                    # Books get harder, for NOSA's fork by a little more.
                    loss = value + index * (0.102 if label == "nosa" else 0.1)
                    own |= {**book, "measures": {**base.measures, "loss": loss}}
                yield base.model_copy(update=mine | own)


def write(folder: Path, run: Run, provenance: Any, **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    names = dict.fromkeys(fork for fork, _ in run.right)
    config = {
        "profile": run.profile, "seed": run.seed, "confidence": 0.95, "bootstrap_resamples": 200, "budgets": [1024],
        "models": {f"fork-{name}": {"path": f"results/{run.profile}/forks/dense/{name}/model"} for name in names},
        "methods": {label: {} for label in METHODS},
        "suites": {name: {"contexts": [4096], "samples": run.prompts} for name in ("ruler", "pg19_long")},
        "adaptation": {
            "defaults": {"model": "dense", "steps": run.steps, "rows": 2},
            "runs": {name: {"attention": name.partition("_")[0]} for name in names},
        },
        **more,
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    found = list(records(run, provenance))
    for model, label, suite in {(r.model, r.label, r.suite) for r in found}:
        mine = [r for r in found if (r.model, r.label, r.suite) == (model, label, suite)]
        write_records(folder / "records" / model / label / f"{suite}.parquet", mine, Record)
    write_table(folder / "summary.csv", summary.summarise(found, summary.Spread(0.95, 200, 0)))
    write_table(folder / "along_generation.parquet", curves.along_generation(found, 0.95))
    write_table(folder / "loss_by_position.parquet", curves.loss_by_position(found, 0.95))
    return folder


def page_inputs(folder: Path) -> PaperInputs:
    writer = FigureWriter(folder / "figures", looks(list(METHODS), list(METHODS), "full"))
    results = load_results(folder / "config.yaml", folder)
    found = papers_of(results, folder, writer, lambda model, suite: "", str, {"nosa": "nosa"})
    return next(paper.inputs for paper in found if paper.name == "nosa")


def committed(scratch: Path) -> PaperInputs:
    """Return what NOSA's page draws on for the committed run; the working folder must be the project's."""
    folder = Path("results/nosa")
    results = load_results(folder / "config.yaml", folder)
    writer = FigureWriter(scratch / "figures", looks(list(METHODS), list(METHODS), "full"))
    found = papers_of(results, folder, writer, lambda model, suite: "", str, {"nosa": "nosa"})
    return next(paper.inputs for paper in found if paper.name == "nosa")


def made(folder: Path, provenance: Any, first: Run, fresh: Run | None = None, longer: Run | None = None) -> PaperInputs:
    """Return what NOSA's page draws on for a run that names others, all of them written into a folder."""
    named = {"fresh": fresh, "longer": longer}
    more = {
        f"{name}_from": str(write(folder / name, run, provenance)) for name, run in named.items() if run is not None
    }
    return page_inputs(write(folder / "first", first, provenance, **more))
