"""Build the report: static pages, figures and their data, from what a run left behind."""

from __future__ import annotations

import csv
import io
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from longdecode.evals.stats import MIN_OFF_EDGE, MIN_RESAMPLED
from longdecode.evals.tasks.registry import describe, suite_names
from longdecode.methods.registry import load_card, method_names
from longdecode.reporting import checkpoint, curves, families, quality, setups, tables, traffic, verdicts, wording
from longdecode.reporting.figure import Figure, FigureWriter
from longdecode.reporting.identity import looks
from longdecode.reporting.papers.registry import PaperPage, papers_of
from longdecode.reporting.results import ALL_TASKS, REFERENCE_METHOD, Results, Topic, load_results
from longdecode.reporting.speed import page as speed_page
from longdecode.reporting.speed.measured import CEILING_METHOD, Speed
from longdecode.reporting.staleness import measured_before

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class SuiteSection:
    """One model's part of a suite's page."""

    model: str
    quality: list[Figure]
    along: list[Figure]
    position: list[Figure]
    by_task: Figure | None
    tables: list[tables.ScoreTable]


@dataclass(frozen=True, slots=True)
class TrafficSection:
    """One model's part of the traffic page."""

    model: str
    pareto: Figure | None
    context: Figure | None
    budget: Figure | None
    achieved: Figure | None
    table: list[tuple[int, list[dict[str, str]]]]


def build_report(config_path: Path, results_dir: Path, output_dir: Path) -> None:
    """Write the report's pages, figures and data to ``output_dir``; ``index.html`` comes last.

    Args:
        config_path: the configuration as run.
        results_dir: the folder with ``summary.csv``, its curves, ``records/`` and perhaps ``instrument.json``, or with
            ``speed.csv`` and its tables, or with all of them.
        output_dir: where the pages go; what an earlier report left there and this one does not make is removed.

    Raises:
        ReportError: the folder has neither a summary nor times.
        ConfigError: a method has no card.
    """
    results = load_results(Path(config_path), Path(results_dir))
    output_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output_dir.parent, prefix=f".{output_dir.name}.") as scratch:
        _Build(results, Path(results_dir), Path(scratch)).everything()
        _publish(Path(scratch), output_dir)


class _Build:
    """One report in the making."""

    def __init__(self, results: Results, results_dir: Path, folder: Path):
        self.results = results
        self.main = results.without(results.ablations) if results.ablations else results
        self.results_dir = results_dir
        self.folder = folder
        self.kinds = _kinds(results)
        drawn = looks(list(self.kinds), list(self.kinds.values()), REFERENCE_METHOD, CEILING_METHOD)
        self.figures = FigureWriter(folder, drawn)
        known = results.config.get("models") or {}
        self.models = {name: checkpoint.describe(name, known.get(name)) for name in results.models}
        self.timed = _timed_models(results.speed, known)
        carded = set(method_names())
        self.labels = [label for label, kind in self.kinds.items() if label in results.labels or kind in carded]
        self.listed = [label for label in self.labels if label not in results.ablations]
        suites = {name: describe(name) for name in suite_names()}
        self.suite_words = {name: words["summary"] for name, words in suites.items() if "summary" in words}
        self.task_words = {task: text for words in suites.values() for task, text in words.get("tasks", {}).items()}
        self.words: Mapping[str, Any] = yaml.safe_load((_HERE / "families.yaml").read_text("utf-8"))
        self.featured = families.featured(self.listed, self.kinds, self.words["featured"])
        self.families = families.by_family(self.listed, self.kinds, self.words["families"])
        self.environment = _environment()
        pages = {label: self.kinds[label] for label in self.labels}
        self.papers = papers_of(results, results_dir, self.figures, self._about, self._timed_name, pages)
        self.common = self._common()

    def everything(self) -> None:
        """Write every page."""
        shutil.copyfile(_HERE / "templates" / "style.css", self.folder / "style.css")
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
        self._figure_index()

    def _index(self) -> None:
        results = self.main
        drawn = results.without(set(results.labels) - self.featured)
        boards = [
            (model, verdicts.board(results, model), quality.overview(drawn, self.figures, model, self._about(model)))
            for model in results.models
        ]
        swept = [label for label in results.labels if results.kind(label) != REFERENCE_METHOD]
        counts = results.summary.loc[(results.summary["status"] == "ok") & (results.summary["task"] != ALL_TASKS), "n"]
        few, many = (int(counts.min()), int(counts.max())) if len(counts) else (0, 0)
        units = {grid.topic.unit for _, grids, _ in boards for grid in grids}
        self._page(
            "index.html", "index.html", "Overview",
            f"{_subjects(results)} of {wording.listing(swept or self.listed)} against full attention.",
            boards=boards,
            swept=swept,
            holes=tables.holes(self.results.records),
            record_count=len(self.results.records),
            cell_count=int((self.results.summary["task"] != ALL_TASKS).sum()),
            ablations=[label for label in self.labels if label in results.ablations],
            samples=wording.plural(many, "sample") if few == many else f"{few:,} to {many:,} samples",
            devices=sorted(set(results.summary["device"])),
            budgets=_budgets(results),
            contexts=[f"{context:,}" for context in sorted(set(results.summary["context"]))],
            margin=wording.listing(sorted({verdicts.margin(unit) for unit in units}, key=len)),
            has_losses=bool(results.losses),
            words={**self.suite_words, **self.task_words},
            matched=setups.matched(self.results),
            setups=setups.timed_setups(results),
            headlines=speed_page.headlines(results.speed, self._timed_name) if results.speed is not None else [],
            speed=speed_page.facts(self.results.speed, self._timed_name) if self.results.speed is not None else None,
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
            sections.append(
                SuiteSection(
                    model,
                    _made(
                        quality.against_budget(results, self.figures, topic, self._about(model, suite, topic))
                        for topic in topics
                    ),
                    _made([curves.along_generation(results, self.figures, model, suite, about)]),
                    _made(
                        curves.loss_by_position(results, self.figures, model, t.task, self._about(model, suite, t))
                        for t in tasks
                    ),
                    quality.by_task(results, self.figures, model, suite, about) if has_mean else None,
                    [tables.score_table(results, topic) for topic in (topics if has_mean else []) + tasks],
                )
            )
        names = {topic.task for model in results.models for topic in results.tasks(model, suite)}
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

    def _method(self, label: str) -> None:
        results = self.results.without(self.results.ablations - {label})
        card = load_card(self.kinds[label])
        scored, speed, ablation = label in results.labels, results.speed, label in self.results.ablations
        sections = [
            (
                model,
                None if ablation else quality.one_method(results, self.figures, model, label, self._about(model)),
                tables.method_table(results, model, label),
                verdicts.board(results, model, [label]),
            )
            for model in (results.models if scored else [])
        ]
        drawn = None if ablation else self.figures
        timed = [] if speed is None else speed_page.method_sections(speed, drawn, label, self._timed_name)
        self._page(
            "method.html",
            f"method-{wording.slug(label)}.html",
            label,
            card.summary,
            label=label,
            card=card,
            params=results.params(label) if scored or speed is None else speed.params(label),
            sections=sections,
            timed=timed,
            variants=[] if ablation else self._ablations_of(self.kinds[label], label),
            own_papers=[page for page in self.papers if page.name == self.kinds[label]],
        )

    def _ablations_of(self, kind: str, label: str) -> list[str]:
        return [
            other
            for other, method in self.kinds.items()
            if method == kind and other != label and other in self.results.ablations and other in self.labels
        ]

    def _paper(self, page: PaperPage) -> None:
        self._page(
            "paper.html", f"paper-{page.name}.html", page.title, page.paper.summary, paper=page.published.paper,
            sections=page.paper.sections(page.inputs), variants=self._ablations_of(page.name, page.name),
        )  # fmt: skip

    def _speed(self, speed: Speed) -> None:
        self._page(
            "speed.html", "speed.html", "Speed", "Step times and speedups, beside the floor that memory sets.",
            **speed_page.speed_page(speed, self.figures, self._timed_name, self.main.speed or speed),
        )  # fmt: skip

    def _timed_name(self, model: str) -> str:
        return self.timed[model].short

    def _traffic(self) -> None:
        results, sections = self.main, []
        for model in results.models:
            about = self._about(model)
            sections.append(
                TrafficSection(
                    model,
                    quality.against_bytes(results, self.figures, model, about),
                    traffic.against_context(results, self.figures, model, about),
                    traffic.against_budget(results, self.figures, model, about),
                    traffic.achieved(results, self.figures, model, about),
                    tables.traffic_table(results, model),
                )
            )
        self._page(
            "traffic.html", "traffic.html", "Traffic", "Bytes read per generated token, by method, budget and context.",
            sections=sections,
        )  # fmt: skip

    def _provenance(self) -> None:
        results = self.results
        origins = [r.provenance for r in results.records] + [r.provenance for r in results.speed_records]
        moments = sorted(origin.started_at.replace("T", " ") for origin in origins)
        about = "Revision, versions, seeds, checks and configuration behind every number."
        self._page(
            "provenance.html", "provenance.html", "Provenance", about,
            facts=tables.provenance_facts(results.records),
            hashes=tables.hashes(results.records),
            record_count=len(results.records),
            started=(moments[0], moments[-1]) if moments else None,
            models=results.models,
            config_text=results.config_text.strip(),
            resamples=int(results.config.get("bootstrap_resamples", 2000)),
            off_edge=MIN_OFF_EDGE,
            few=MIN_RESAMPLED,
            speed_facts={} if results.speed is None else speed_page.provenance(results.speed, results.speed_records),
        )  # fmt: skip

    def _figure_index(self) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["name", "title", "svg", "data", "caption"])
        for f in self.figures.written:
            writer.writerow([f.name, f.title, f.wide, f.data, f.caption])
        (self.folder / "figures" / "index.csv").write_text(text.getvalue(), encoding="utf-8")

    def _common(self) -> dict[str, Any]:
        """Return what every page may use."""
        results = self.results
        checks = None if results.instrument is None else list(results.instrument.get("checks", []))
        outcomes = Counter(check["outcome"] for check in checks or [])
        return {
            "profile": results.profile,
            "suites": results.suites,
            "labels": self.listed,
            "families": self.families,
            "featured": self.featured,
            "papers": self.papers,
            "with_page": set(self.labels),
            "has_quality": results.has_quality,
            "has_speed": results.speed is not None,
            "stale": measured_before(results.records, results.speed_records, results.ablations),
            "percent": f"{100 * results.confidence:g}{wording.NARROW}%",
            "model_words": list({**self.models, **self.timed}.values()),
            "data_line": _data_line({record.data_source for record in results.records if record.status == "ok"}),
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


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    names = ("slug", "budget", "score", "score_interval", "gap", "gap_interval", "unit_label", "difference_unit")
    environment.filters |= {name: getattr(wording, name) for name in (*names, "short_tokens")} | {
        "numbers": _numbers,
        "margin": verdicts.margin,
    }
    return environment


def _numbers(value: Any) -> str:
    """The numbers of a check, readable: nested mappings flattened, four significant digits."""
    if isinstance(value, Mapping):
        parts = (
            f"{key} ({_numbers(entry)})" if isinstance(entry, Mapping) else f"{key}: {_numbers(entry)}"
            for key, entry in value.items()
        )
        return "; ".join(parts)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_numbers(entry) for entry in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _kinds(results: Results) -> dict[str, str]:
    """The registered method behind every label that was scored or timed; those that were only timed come last."""
    scored = {label: results.kind(label) for label in results.labels}
    timed = {} if results.speed is None else {label: results.speed.kind(label) for label in results.speed.labels}
    return {**scored, **{label: kind for label, kind in timed.items() if label not in scored}}


def _timed_models(speed: Speed | None, known: Mapping[str, Any]) -> dict[str, checkpoint.ModelWords]:
    """Models whose steps were timed, in words; shapes that only kernels were timed at are named with the kernels."""
    return {
        name: checkpoint.describe(name, known[name])
        if name in known
        else checkpoint.ModelWords(f"{name.removesuffix('-shape')} shape, random weights", "", False)
        for name in (speed.models if speed is not None else [])
    }


def _subjects(results: Results) -> str:
    found = [*(["quality", "memory traffic"] if results.has_quality else []), *(["speed"] if results.speed else [])]
    return wording.listing(found).capitalize()


def _budgets(results: Results) -> list[str]:
    swept = results.summary[results.summary["kind"] != REFERENCE_METHOD].sort_values("share")
    return [wording.budget(text) for text in dict.fromkeys(swept["budget"])]


def _data_line(sources: set[str]) -> str:
    words = {"generated": "generated by the project", "real": "real texts"}
    return wording.listing([words.get(source, source) for source in sorted(sources)])


def _made(figures: Any) -> list[Figure]:
    return [figure for figure in figures if figure is not None]


def _publish(made: Path, target: Path) -> None:
    """Move a finished report into place, file by file, the front page last; remove what it no longer has."""
    files = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
    for name in sorted(files, key=lambda path: path == Path("index.html")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).replace(target / name)
    pages = ("suite-*.html", "method-*.html", "paper-*.html", "traffic.html", "speed.html", "figures/*")
    ours = [path for pattern in pages for path in target.glob(pattern)]
    for path in ours:
        if path.relative_to(target) not in files:
            path.unlink()
