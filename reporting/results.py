"""Read a run's results once: summary, records, curves, instrument checks, configuration."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from longdecode.engine.errors import LongDecodeError
from longdecode.evals.budgets import token_share
from longdecode.evals.record_files import RecordFile
from longdecode.evals.records import Record, SpeedRecord
from longdecode.evals.run_config import RunConfig
from longdecode.evals.store import read_folder, read_frame, read_records
from longdecode.evals.suite_spec import with_protocols
from longdecode.evals.summary import ALL_TASKS, COLUMNS, REFERENCE_METHOD, Spread
from longdecode.reporting.dependence import Dependence, dependence
from longdecode.reporting.flips import Flips, Place, count_flips
from longdecode.reporting.solved import full_does
from longdecode.reporting.speed.measured import Speed, load_speed

__all__ = ["ALL_TASKS", "ORACLE", "REFERENCE_METHOD", "ReportError", "Results", "Topic", "load_results"]
ORACLE = "oracle_topk"
"""The limit of choosing tokens: it reads every key to choose, so no one would run it."""
_TEXT = (
    "suite",
    "task",
    "metric",
    "model",
    "method",
    "variant",
    "params",
    "budget",
    "unit",
    "status",
    "device",
    "revision",
)


class ReportError(LongDecodeError):
    """The results folder lacks something a report cannot do without."""


@dataclass(frozen=True, slots=True)
class Topic:
    """Name the subject of one quality figure: a suite's mean, or one task where tasks of a suite share no unit."""

    model: str
    suite: str
    task: str
    metric: str
    unit: str
    higher_is_better: bool
    data_source: str

    @property
    def name(self) -> str:
        """The suite for a suite mean, the task otherwise."""
        return self.suite if self.task == ALL_TASKS else self.task


@dataclass(frozen=True, slots=True)
class TextFile:
    """Long texts of one job, and the code hash of each method that drafted for them."""

    records: Sequence[Record]


@dataclass(frozen=True, slots=True)
class GateRecord:
    """One label's passed or failed conformance: whose, and of which code."""

    label: str
    method: str
    code_hash: str
    revision: str


@dataclass(frozen=True)
class Results:
    """Hold everything the pages draw on.

    ``summary`` holds the rows of summary.csv with two more columns: ``kind`` (the registered method behind a label) and
    ``share`` (the budget as a fraction of the context; 1 for methods that read everything). ``losses`` names the tasks
    of which lower is better; ``flips`` counts the answers that a cell wins and loses against Full;
    ``dependence`` says what shared prompts do to intervals; ``text_files`` hold the records of long generation, which
    no summary holds.
    """

    profile: str
    config: Mapping[str, Any]
    config_text: str
    summary: pd.DataFrame
    along: pd.DataFrame
    loss: pd.DataFrame
    records: Sequence[Record]
    losses: frozenset[str]
    instrument: Mapping[str, Any] | None
    speed: Speed | None = None
    speed_records: Sequence[SpeedRecord] = ()
    text_files: Sequence[TextFile] = ()
    flips: Mapping[Place, Flips] = field(default_factory=dict)
    dependence: Dependence = field(default_factory=Dependence)
    gates: Sequence[GateRecord] = ()

    @property
    def texts(self) -> list[Record]:
        """Records of long generation."""
        return [record for file in self.text_files for record in file.records]

    @property
    def has_quality(self) -> bool:
        """True where anything was scored; a run may be of speed only."""
        return not self.summary.empty

    @property
    def confidence(self) -> float:
        """Coverage of every interval."""
        return RunConfig.confidence

    @cached_property
    def models(self) -> list[str]:
        """Models in the configuration's order."""
        return _ordered(self.summary["model"], self.config.get("models", {}))

    @cached_property
    def suites(self) -> list[str]:
        """Suites in the configuration's order."""
        return _ordered(self.summary["suite"], self.config.get("suites", {}))

    @cached_property
    def labels(self) -> list[str]:
        """Method labels in the configuration's order, Full first."""
        found = _ordered(self.summary["method"], self.config.get("methods", {}))
        return sorted(found, key=lambda label: self._kinds[label] != REFERENCE_METHOD)

    @cached_property
    def ran(self) -> frozenset[tuple[str, str]]:
        """Labels, and the models that each has a row of."""
        return frozenset(zip(self.summary["method"], self.summary["model"], strict=True))

    @cached_property
    def _kinds(self) -> dict[str, str]:
        return dict(zip(self.summary["method"], self.summary["kind"], strict=True))

    @property
    def ablations(self) -> frozenset[str]:
        """Labels that run on a part only (``suites`` or ``budgets`` of their own) of what their method runs on whole.

        They vary a method to learn about it, so they stand on its pages and not in overviews. Where no label of the
        method runs on everything, each part is all that there is of it.
        """
        methods = {label: spec or {} for label, spec in (self.config.get("methods") or {}).items()}
        kinds = {label: spec.get("method", label) for label, spec in methods.items()}

        def is_part(label: str) -> bool:
            return bool(methods[label].get("suites") or methods[label].get("budgets"))

        def has_whole(label: str) -> bool:
            whole = (other for other in methods if kinds[other] == kinds[label] and methods[other].get("suites") != [])
            return any(not is_part(other) and self._share_a_model(other, label) for other in whole)

        return frozenset(label for label in methods if is_part(label) and has_whole(label))

    def _share_a_model(self, label: str, other: str) -> bool:
        return any(self.meant_for(label, model) and self.meant_for(other, model) for model in self.models)

    def meant_for(self, label: str, model: str) -> bool:
        """Return whether the configuration runs a label on a model: a method may name its ``models``."""
        spec = (self.config.get("methods") or {}).get(label) or {}
        return not spec.get("models") or model in spec["models"]

    def compares(self, model: str) -> bool:
        """Return whether a model has a method beside Full; a run of Full alone counts too."""
        swept = [label for label in self.labels if self.kind(label) != REFERENCE_METHOD]
        return not swept or any(self.meant_for(label, model) for label in swept)

    def failed(self, model: str) -> frozenset[str]:
        """Labels that a correctness gate barred from a score or a time of the model: they are judged nowhere."""
        names = set(self.summary.loc[_barred(self.summary, model), "method"])
        if self.speed is not None:
            steps = self.speed.table[self.speed.table["bench"] == "decode"]
            names |= set(steps.loc[_barred(steps, model), "label"])
        return frozenset(names - {REFERENCE_METHOD})

    def without(self, labels: Collection[str]) -> Results:
        """The same without some labels; what was timed of them is left out too."""
        gone = list(labels)
        tables = {
            name: frame[~frame["method"].isin(gone)]
            for name in ("summary", "along", "loss")
            if len(frame := getattr(self, name))
        }
        records = [record for record in self.records if record.variant not in labels]
        speed = None if self.speed is None else self.speed.without(labels)
        return replace(self, records=records, speed=speed, **tables)

    def kind(self, label: str) -> str:
        """The registered method behind a label."""
        return str(self._kinds[label])

    def params(self, label: str) -> dict[str, Any]:
        """The parameters a label was configured with."""
        return dict(json.loads(self.summary.loc[self.summary["method"] == label, "params"].iloc[0]))

    def topics(self, model: str, suite: str | None = None) -> list[Topic]:
        """Suite means where there are any, single tasks elsewhere and where Full does only some of a mean's tasks."""
        found = []
        for name in self.suites if suite is None else [suite]:
            rows = self.summary[(self.summary["model"] == model) & (self.summary["suite"] == name)]
            mean = (rows["task"] == ALL_TASKS).any() and not _mixed(rows)
            tasks = [ALL_TASKS] if mean else sorted(set(rows["task"]) - {ALL_TASKS})
            found += [self.topic(model, name, task) for task in tasks]
        return found

    def tasks(self, model: str, suite: str) -> list[Topic]:
        """Every task of a suite."""
        rows = self.summary[(self.summary["model"] == model) & (self.summary["suite"] == suite)]
        return [self.topic(model, suite, task) for task in sorted(set(rows["task"]) - {ALL_TASKS}, key=_natural)]

    def topic(self, model: str, suite: str, task: str) -> Topic:
        """One task, or a suite's mean."""
        row = self.rows(model, suite, task).iloc[0]
        members = self.summary.loc[(self.summary["model"] == model) & (self.summary["suite"] == suite), "task"]
        names = {task} if task != ALL_TASKS else set(members) - {ALL_TASKS}
        better = not names <= self.losses
        return Topic(model, suite, task, row["metric"], row["unit"], better, row["data_source"])

    def rows(self, model: str, suite: str, task: str) -> pd.DataFrame:
        """The summary's rows of one task (or mean) of one model."""
        table = self.summary
        return table[(table["model"] == model) & (table["suite"] == suite) & (table["task"] == task)]

    def rows_of(self, topic: Topic, context: int | None = None) -> pd.DataFrame:
        """The summary's rows behind a topic, at one context or all."""
        found = self.rows(topic.model, topic.suite, topic.task)
        return found if context is None else found[found["context"] == context]

    def members(self, topic: Topic) -> dict[int, list[str]]:
        """For a suite's mean, the tasks it is over at each context: those that Full could do there."""
        table = self.summary
        ran = table[(table["model"] == topic.model) & (table["suite"] == topic.suite) & (table["status"] == "ok")]
        full = ran[(ran["kind"] == REFERENCE_METHOD) & (ran["task"] != ALL_TASKS)]
        contexts = set(self.rows_of(topic)["context"])
        return {
            int(str(context)): sorted(set(rows["task"]), key=_natural)
            for context, rows in full.groupby("context")
            if context in contexts
        }

    def contexts(self, topic: Topic) -> list[int]:
        """Contexts at which anything of a topic ran."""
        rows = self.rows_of(topic)
        return sorted(set(rows.loc[rows["status"] == "ok", "context"]))

    def hardest_context(self, topic: Topic) -> int | None:
        """Return the context at which methods lose most to Full on average; the longest one where Full is absent."""
        rows = self.rows_of(topic)
        ran = rows[rows["status"] == "ok"]
        gaps = ran[ran["diff_to_full"].notna()].groupby("context")["diff_to_full"].mean()
        if len(gaps):
            return int(str(gaps.idxmin() if topic.higher_is_better else gaps.idxmax()))
        return int(ran["context"].max()) if len(ran) else None


def load_results(config_path: Path, results_dir: Path) -> Results:
    """Read a run's results: of quality, of speed, or of both.

    Args:
        config_path: the configuration as run.
        results_dir: the folder with ``summary.csv``, ``records/`` and, where checks were run, ``instrument.json``; with
            ``speed.csv`` and ``speed/`` where time was measured.

    Raises:
        ReportError: there is neither a summary with a row nor a time, every cell failed, or a gate's file is damaged.
        RecordSchemaError: a record file cannot be read by this code.
    """
    text = config_path.read_text(encoding="utf-8")
    config = with_protocols(yaml.safe_load(text) or {})
    summary_path = results_dir / "summary.csv"
    speed = load_speed(results_dir, list(config.get("methods") or {}))
    if speed is None and not summary_path.exists():
        raise ReportError(f"{summary_path}: no summary to report, nor speed.csv; run the target that writes one first")
    summary = (
        _curves(summary_path) if summary_path.exists() else pd.DataFrame(columns=[n for n in COLUMNS if n != "variant"])
    )
    if summary.empty and speed is None:
        raise ReportError(f"{summary_path}: the summary has no row")
    records = _records(config, results_dir / "records")
    if summary_path.exists() and speed is None and not (summary["status"] == "ok").any():
        raise ReportError(_nothing_ran(summary_path, records))
    kinds = {record.variant: record.method for record in records}
    summary["kind"] = summary["method"].map(lambda label: kinds.get(label, label))
    summary["share"] = [_share(text, tokens / context) for text, tokens, context in _budgets(summary)]
    instrument = results_dir / "instrument.json"
    spread = Spread(RunConfig.confidence, RunConfig.bootstrap_resamples, config.get("seed", 0))
    return Results(
        profile=str(config.get("profile", results_dir.name)),
        config=config,
        config_text=text,
        summary=summary,
        along=_curves(results_dir / "along_generation.parquet") if len(summary) else pd.DataFrame(),
        loss=_curves(results_dir / "loss_by_position.parquet") if len(summary) else pd.DataFrame(),
        records=records,
        losses=frozenset(record.task for record in records if not record.higher_is_better),
        instrument=json.loads(instrument.read_text(encoding="utf-8")) if instrument.exists() else None,
        speed=speed,
        flips=count_flips(records),
        dependence=dependence(records, spread),
        gates=[_gate(path) for path in sorted((results_dir / "gate").glob("*.json"))],
        speed_records=read_folder(results_dir / "speed", SpeedRecord),
        text_files=[
            TextFile(tuple(read_records(path, Record)))
            for path in sorted((results_dir / "generation").rglob("*.parquet"))
        ],
    )


def _records(config: Mapping[str, Any], folder: Path) -> list[Record]:
    """The records of the jobs that the configuration names: a narrower run beside an older one shows its own only."""
    small = config.get("jobs", "suite") != "suite"
    paths = [
        RecordFile(model, label, suite, context).path(folder)
        for model in config.get("models") or {}
        for label in config.get("methods") or {}
        for suite, spec in (config.get("suites") or {}).items()
        for context in (spec["contexts"] if small else (None,))
    ]
    return [record for path in paths if path.exists() for record in read_records(path, Record)]


def _gate(path: Path) -> GateRecord:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return GateRecord(path.stem, found["method"], found["code_hash"], found["revision"])
    except (ValueError, KeyError, TypeError) as error:
        raise ReportError(f"{path}: no gate's file ({type(error).__name__}: {error})") from error


def _nothing_ran(path: Path, records: Sequence[Record]) -> str:
    counts = Counter(record.status for record in records)
    reasons = Counter((record.reason or "no reason given").splitlines()[0] for record in records)
    told = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    most = f"; most often: {reasons.most_common(1)[0][0]}" if reasons else ""
    return f"{path}: every cell failed ({told}), so there is nothing to publish{most}"


def _budgets(summary: pd.DataFrame) -> Iterable[tuple[str, float, int]]:
    return zip(summary["budget"], summary["budget_tokens"], summary["context"], strict=True)


def _share(text: str, measured: float) -> float:
    """The budget as configured where that is a fraction: its tokens are rounded up."""
    share = token_share(text)
    return 1.0 if text == "full" else measured if share is None else share


def _curves(path: Path) -> pd.DataFrame:
    if not path.exists():
        raise ReportError(f"{path}: missing; it is written beside summary.csv")
    if path.suffix == ".parquet":
        return read_frame(path).astype({"budget_tokens": "Int64"})
    table = pd.read_csv(path, dtype=dict.fromkeys(_TEXT, object), keep_default_na=False, na_values=[""])
    return table.drop(columns="method").rename(columns={"variant": "method"}) if "variant" in table else table


def _mixed(rows: pd.DataFrame) -> bool:
    """Return whether Full does some tasks of a suite, at one context at least, and fails others."""
    full = rows[(rows["kind"] == REFERENCE_METHOD) & (rows["status"] == "ok") & (rows["task"] != ALL_TASKS)]
    does = full.apply(lambda row: full_does(row["metric"], row["unit"], row["value"]), axis=1)
    return len(full) > 0 and does.groupby(full["task"]).any().nunique() > 1


def _barred(table: pd.DataFrame, model: str) -> pd.Series:
    return (table["model"] == model) & (table["status"] == "failed_gate")


def _ordered(found: pd.Series, wanted: Mapping[str, Any]) -> list[str]:
    names = set(found)
    return [name for name in wanted if name in names] + sorted(names - set(wanted))


def _natural(name: str) -> tuple[str, int]:
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)
