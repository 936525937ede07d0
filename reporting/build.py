"""Build the report: static pages, figures and their data, from what a run left behind."""

from __future__ import annotations

import argparse
import csv
import io
import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longdecode.evals import manifest
from longdecode.evals.run_config import RunConfig
from longdecode.evals.stats import MIN_OFF_EDGE, MIN_RESAMPLED
from longdecode.evals.tasks.registry import describe, suite_names
from longdecode.methods.registry import load_card, method_names
from longdecode.reporting import (
    checkpoint,
    curves,
    data_files,
    environment,
    families,
    index,
    quality,
    samples,
    tables,
    traffic_page,
    tuning_status,
    verdicts,
    wording,
)  # fmt: skip
from longdecode.reporting.figure import Figure, FigureWriter
from longdecode.reporting.identity import looks
from longdecode.reporting.papers.page import PaperPage, paper_pages
from longdecode.reporting.results import ALL_TASKS, ORACLE, REFERENCE_METHOD, Results, Topic, load_results
from longdecode.reporting.speed import page as speed_page
from longdecode.reporting.speed.measured import CEILING_METHOD, Speed
from longdecode.reporting.staleness import code_line

_HERE = Path(__file__).parent
SHOWN_SAMPLES = 2
"""Samples of a cell that the report shows; ``python -m longdecode.reporting.samples`` writes all of them."""


@dataclass(frozen=True, slots=True)
class SuiteSection:
    """One model's part of a suite's page."""

    model: str
    quality: list[Figure]
    along: list[Figure]
    position: list[Figure]
    by_task: Figure | None
    tables: list[tables.ScoreTable]
    grids: list[verdicts.Grid]
    example: samples.Reading | None
    lost: list[tuple[samples.Cell, list[tuple[int, int]], list[samples.Reading]]]
    compared: bool


def build_report(config_path: Path, results_dir: Path, output_dir: Path) -> None:
    """Write the report's pages, figures and data to ``output_dir``; ``index.html`` comes last.

    Args:
        config_path: the configuration as run.
        results_dir: the folder with ``summary.csv``, its curves, ``records/`` and perhaps ``instrument.json``, or with
            ``speed.csv`` and its tables, or with all of them.
        output_dir: where the pages go; what an earlier report left there and this one does not make is removed.

    Raises:
        ReportError: the folder has neither a summary nor times, or one that the configuration names has none.
        ConfigError: a method has no card.
    """
    results = load_results(Path(config_path), Path(results_dir))
    output_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output_dir.parent, prefix=f".{output_dir.name}.") as scratch:
        _Build(results, Path(results_dir), Path(scratch)).everything()
        data_files.publish(Path(scratch), output_dir)


class _Build:
    """One report in the making."""

    def __init__(self, results: Results, results_dir: Path, folder: Path):
        self.results = results
        self.main = results.without(results.ablations) if results.ablations else results
        self.results_dir = results_dir
        self.folder = folder
        self.kinds = _kinds(results)
        words = families.settings()
        drawn = looks(
            list(self.kinds), list(self.kinds.values()), REFERENCE_METHOD, CEILING_METHOD, ORACLE, words["hues"]
        )
        self.figures = FigureWriter(folder, drawn)
        known = results.config.get("models") or {}
        self.models = {name: checkpoint.describe(name, known.get(name)) for name in results.models}
        self.timed = checkpoint.timed_models(results.speed.named if results.speed else (), known)
        carded = set(method_names())
        self.labels = [label for label, kind in self.kinds.items() if label in results.labels or kind in carded]
        self.listed = [label for label in self.labels if label not in results.ablations]
        suites = {name: describe(name) for name in suite_names()}
        self.suite_words = {name: words["summary"] for name, words in suites.items() if "summary" in words}
        self.task_words = {task: text for words in suites.values() for task, text in words.get("tasks", {}).items()}
        self.featured = families.featured(self.listed, self.kinds, words["featured"])
        self.families = families.by_family(self.listed, self.kinds, words["families"])
        self.suite_families = families.suite_families()
        self.tuning = tuning_status.tuning_status(results)
        self.reader = samples.SampleReader(results)
        self.source = os.path.relpath(results_dir.resolve(), folder.resolve()).replace(os.sep, "/")
        self.environment = environment.make_environment()
        self.papers = paper_pages(results_dir)
        self.common = self._common()

    def everything(self) -> None:
        """Write every page."""
        for name in ("tables.js", "style.css"):
            shutil.copyfile(_HERE / "templates" / name, self.folder / name)
        self._index()
        for suite in self.results.suites:
            self._suite(suite)
        for label in self.labels:
            self._method(label)
        if self.results.has_quality:
            self._traffic()
        if self.results.speed is not None:
            self._speed(self.results.speed)
        for paper in self.papers:
            self._paper(paper)
        self._provenance()
        self._data()
        self._figure_index()

    def _index(self) -> None:
        self._page(
            "index.html", "index.html", "Overview",
            f"{_subjects(self.main)} of {wording.listing(self.listed)} against full attention.",
            ablations=[label for label in self.labels if label in self.results.ablations],
            words={**self.suite_words, **self.task_words},
            texts=sorted(Counter(record.model for record in self.results.texts if record.status == "ok").items()),
            **index.index_values(
                self.results, self.main, self.figures, self.models, self.featured, self.suite_families, self._about,
                self._timed_name,
            ),
        )  # fmt: skip

    def _data(self) -> None:
        self._page(
            "data.html", "data.html", "Data", "Every table of the run as a file, and every table of the report.",
            files=data_files.files(self.results_dir, self.source), score_pages=self.results.suites,
            first_model=next(iter(self.results.models), ""), model_count=len(self.results.models),
        )  # fmt: skip

    def _suite(self, suite: str) -> None:
        results = self.main
        sections = []
        for model in results.models:
            topics, tasks = results.topics(model, suite), results.tasks(model, suite)
            if not topics:
                continue
            has_mean = topics[0].task == ALL_TASKS
            about = self._about(model, suite)
            drawn = results.compares(model)
            sections.append(
                SuiteSection(
                    model,
                    _made(
                        quality.against_budget(results, self.figures, topic, self._about(model, suite, topic))
                        for topic in topics
                        if drawn
                    ),
                    _made([curves.along_generation(results, self.figures, model, suite, about)]),
                    _made(
                        curves.loss_by_position(results, self.figures, model, t.task, self._about(model, suite, t))
                        for t in tasks
                        if drawn
                    ),
                    quality.by_task(results, self.figures, model, suite, about) if has_mean and drawn else None,
                    [tables.score_table(results, topic) for topic in (topics if has_mean else []) + tasks],
                    verdicts.board(results, model, suite=suite),
                    self.reader.example(model, suite, self._exemplary()),
                    [
                        (cell, self.reader.lost(cell), self.reader.told(cell, SHOWN_SAMPLES))
                        for cell in self.reader.cells(model, suite, [x for x in results.labels if x in self.featured])
                    ],
                    drawn,
                )
            )
        names = {t.task for model in results.models for t in results.tasks(model, suite)}
        self._page(
            "suite.html",
            f"suite-{wording.slug(suite)}.html",
            suite,
            self.suite_words.get(suite, f"Results of the suite {suite}."),
            suite=suite,
            suite_text=self.suite_words.get(suite),
            task_texts=[(task, text) for task, text in self.task_words.items() if task in names],
            sections=sections,
        )
        if any(section.lost for section in sections):
            self._page(
                "samples.html", f"samples-{wording.slug(suite)}.html", f"Samples of {suite}",
                f"Samples of {suite} that Full answers and a method does not.", suite=suite, sections=sections,
                shown_samples=SHOWN_SAMPLES,
            )  # fmt: skip

    def _method(self, label: str) -> None:
        results = self.results.without(self.results.ablations - {label})
        card = load_card(self.kinds[label])
        speed, ablation = results.speed, label in self.results.ablations
        scored = set(results.summary[results.summary["method"] == label]["model"]) if label in results.labels else set()
        sections = [
            (
                model,
                None if ablation else quality.one_method(results, self.figures, model, label, self._about(model)),
                tables.method_table(results, model, label),
                verdicts.board(results, model, [label]),
            )
            for model in results.models
            if model in scored
        ]
        drawn = None if ablation else self.figures
        main_page = self.kinds[label] if ablation and self.kinds[label] in self.labels else None
        params = results.params(label) if scored or speed is None else speed.params(label)
        timed = [] if speed is None else speed_page.method_sections(speed, drawn, label, self._timed_name)
        self._page(
            "method.html", f"method-{wording.slug(label)}.html", label, card.summary,
            label=label, card=card, main_page=main_page, params=params, sections=sections, timed=timed,
            knobs=[knob for knob in card.knobs if not main_page or knob.name in params],
            variants=[] if ablation else self._ablations_of(self.kinds[label], label),
            own_papers=[page for page in self.papers if page.name == self.kinds[label]],
        )  # fmt: skip

    def _exemplary(self) -> list[str]:
        """The labels whose samples stand for a suite: the featured ones, the oracle last."""
        return sorted((x for x in self.main.labels if x in self.featured), key=lambda x: self.kinds[x] == ORACLE)

    def _ablations_of(self, kind: str, label: str) -> list[str]:
        return [
            other
            for other, method in self.kinds.items()
            if method == kind and other != label and other in self.results.ablations and other in self.labels
        ]

    def _paper(self, page: PaperPage) -> None:
        self._page(
            "paper.html", f"paper-{page.name}.html", page.title, page.summary, paper=page,
            variants=self._ablations_of(page.name, page.name),
        )  # fmt: skip

    def _speed(self, speed: Speed) -> None:
        values = speed_page.speed_page(speed, self.figures, self._timed_name, self.main.speed or speed)
        self._page(
            "speed.html", "speed.html", "Speed", "Step times and speedups, beside the floor that memory sets.", **values
        )
        self._page("speed_tables.html", "speed-tables.html", "Every timing", "All steps, stages and kernels.", **values)

    def _timed_name(self, model: str) -> str:
        return self.timed[model].short

    def _traffic(self) -> None:
        self._page(
            "traffic.html", "traffic.html", "Traffic", "Bytes read per generated token, by method, budget and context.",
            sections=traffic_page.sections(self.main, self.figures, self._about),
        )  # fmt: skip

    def _provenance(self) -> None:
        results = self.results
        records = [*results.records, *results.texts]
        origins = [r.provenance for r in (*records, *results.speed_records)]
        moments = sorted(origin.started_at.replace("T", " ") for origin in origins)
        about = "Revision, versions, seeds, checks and configuration behind every number."
        self._page(
            "provenance.html", "provenance.html", "Provenance", about,
            facts=tables.provenance_facts(records),
            tuning_heads=tuning_status.HEADS,
            hashes=tables.hashes(records),
            record_count=len(records),
            started=(moments[0], moments[-1]) if moments else None,
            models=results.models,
            config_text=results.config_text.strip(),
            resamples=RunConfig.bootstrap_resamples,
            off_edge=MIN_OFF_EDGE, few=MIN_RESAMPLED,
            speed_facts={} if results.speed is None else speed_page.provenance(results.speed, results.speed_records),
        )  # fmt: skip

    def _figure_index(self) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["name", "title", "same_in_every_row"])
        writer.writerows([f.name, f.title, f.same] for f in self.figures.written)
        (self.folder / "figures" / "index.csv").write_text(text.getvalue(), "utf-8")

    def _common(self) -> dict[str, Any]:
        """Return what every page may use."""
        results = self.results
        checks = None if results.instrument is None else list(results.instrument.get("checks", []))
        outcomes = Counter(check["outcome"] for check in checks or [])
        return {
            "profile": results.profile,
            "pilot": bool(results.config.get("pilot")),
            "suites": results.suites,
            "labels": self.listed,
            "families": self.families,
            "featured": self.featured,
            "papers": self.papers,
            "tuning": self.tuning,
            "source": self.source,
            "csv": [name for name in ("summary.csv", "speed.csv") if (self.results_dir / name).exists()],
            "cite": data_files.citation(results),
            "with_page": set(self.labels),
            "has_quality": results.has_quality,
            "scored": len(results.models) if results.has_quality else 0,
            "outside": tables.outside_methods([*self.kinds.values(), *_drafters(results)]),
            "has_speed": results.speed is not None,
            "code": code_line(results),
            "percent": f"{100 * results.confidence:g}{wording.NARROW}%",
            "model_words": list({**self.models, **self.timed}.values()),
            "data_line": data_files.data_line(
                {record.data_source for record in results.records if record.status == "ok"}
            ),
            "checks": checks,
            "passed": outcomes["passed"],
            "failed": outcomes["failed"],
            "not_run": outcomes["not run"],
        }

    def _about(self, model: str, suite: str | None = None, topic: Topic | None = None) -> str:
        """The end of every caption: which model, which data."""
        rows = self.results.summary[(self.results.summary["model"] == model) & (self.results.summary["status"] == "ok")]
        if suite is not None:
            rows = rows[rows["suite"] == suite]
        sources = {topic.data_source} if topic is not None else set(rows["data_source"])
        return f"Model: {self.models[model].short}. Data: {wording.listing(sorted(sources))}."

    def _page(self, template: str, name: str, heading: str, description: str, **values: Any) -> None:
        page = self.environment.get_template(template)
        text = page.render(**self.common, page=name, heading=heading, description=description, **values)
        (self.folder / name).write_text(text, encoding="utf-8")


def _kinds(results: Results) -> dict[str, str]:
    """The registered method behind every label that was scored or timed; those that were only timed come last."""
    scored = {label: results.kind(label) for label in results.labels}
    timed = {} if results.speed is None else {label: results.speed.kind(label) for label in results.speed.labels}
    return {**scored, **{label: kind for label, kind in timed.items() if label not in scored}}


def _drafters(results: Results) -> set[str]:
    """The registered methods that drafted any of the texts."""
    labels = ((record, record.variant.partition("+")[0]) for record in results.texts if "+" in record.variant)
    return {str(record.params.get("drafter", label)) for record, label in labels}


def _subjects(results: Results) -> str:
    found = [*(["quality", "memory traffic"] if results.has_quality else []), *(["speed"] if results.speed else [])]
    return wording.listing(found).capitalize()


def _made(figures: Any) -> list[Figure]:
    return [figure for figure in figures if figure is not None]


def main(arguments: list[str] | None = None) -> None:
    """Build the pages of a finished run from its results, without running anything."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("results", type=Path, help="a results folder, such as results/h200")
    parser.add_argument("report", type=Path, help="where the pages go, such as reports/h200")
    given = parser.parse_args(arguments)
    manifest.require(given.results)
    build_report(given.results / "config.yaml", given.results, given.report)
    manifest.rewrite(given.report)
    print(given.report / "index.html")


if __name__ == "__main__":
    main()
