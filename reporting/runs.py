"""Read what analysis wrote of a run: tables, gate and instrument checks. Pages read only this and compute nothing."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from longdecode.analysis.declaration import read_table
from longdecode.engine.errors import ConfigError, LongDecodeError
from longdecode.reporting import wording

REFERENCE = "full"
TABLES = ("summary", "speed", "comparisons", "measures", "claims", "pareto", "ranks", "orders", "gpu_time")
CELL = ["model", "suite", "task", "context", "variant", "budget"]


class ReportError(LongDecodeError):
    """A results folder that no page can be made of."""


class NoNumbersError(ReportError):
    """A run without a number: it has not ended, or every cell of it failed."""


@dataclass(frozen=True)
class Run:
    """The tables of one run; a table that was not written is empty.

    ``older`` marks a run behind one paper alone, which is shown as plain tables without pages of its own.
    """

    name: str
    folder: Path
    tables: Mapping[str, pd.DataFrame]
    along: pd.DataFrame
    gate: Sequence[Mapping[str, Any]] = ()
    checks: Sequence[Mapping[str, Any]] = ()
    older: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name in TABLES:
            return self.tables[name]
        raise AttributeError(name)

    @cached_property
    def titles(self) -> dict[str, str]:
        """Titles of all variants of the run by name, each of its own."""
        named: dict[str, tuple[str, str]] = {}
        for table in (self.summary, self.speed):
            for row in table.drop_duplicates("variant").pipe(each) if len(table) else ():
                named.setdefault(row.variant, (row.method, row.params))
        plain = {method: named[method][1] for method, _ in named.values() if method in named}
        found = {
            variant: self._at_budgets(variant, named)
            or wording.variant_title(variant, method, params, plain.get(method))
            for variant, (method, params) in named.items()
        }
        taken = list(found.values())
        return {v: title if taken.count(title) == 1 else f"{title} ({v})" for v, title in found.items()}

    def _at_budgets(self, variant: str, named: dict[str, tuple[str, str]]) -> str:
        """Return the title of a variant that has its method's own knobs and another budget; empty of any other."""
        method, budgets = named[variant][0], (self.config.get("methods", {}).get(variant) or {}).get("budgets") or []
        if variant == method or len(budgets) != 1 or named[variant] != named.get(method):
            return ""
        (given,) = budgets
        text = f"bytes={given['bytes']}" if isinstance(given, dict) else str(given)
        return f"{wording.method_title(method)} at {wording.budget(text).removesuffix(' of the context')}"

    @cached_property
    def methods(self) -> dict[str, str]:
        """The method of each variant."""
        tables = [table[["variant", "method"]] for table in (self.summary, self.speed) if len(table)]
        return {r.variant: r.method for r in pd.concat(tables).drop_duplicates("variant").pipe(each)} if tables else {}

    def title(self, variant: str) -> str:
        """Return a variant's title."""
        return self.titles.get(variant) or wording.variant_title(variant, self.methods.get(variant, variant))

    @cached_property
    def growing(self) -> set[str]:
        """Variants whose budget is a share of what is cached, and whose declared budget is its floor."""
        tables = [table[["variant", "params"]] for table in (self.summary, self.speed) if len(table)]
        return {r.variant for table in tables for r in table.pipe(each) if '"share"' in str(r.params)}

    def budget(self, variant: str, budget: str, counted: float | None = None) -> str:
        """Return a variant's budget in words."""
        return wording.budget(budget, counted) + (" or more" if variant in self.growing else "")

    def family(self, variant: str) -> str:
        """Return a variant's colour family."""
        return wording.family(self.methods.get(variant, variant))

    @property
    def pilot(self) -> bool:
        """True of a run that gives no verdict."""
        return bool(self.config.get("pilot"))

    @property
    def purpose(self) -> str:
        """The heading of the run's own README after its name; empty where there is none."""
        path = self.folder / "README.md"
        heading = path.read_text(encoding="utf-8").partition("\n")[0] if path.is_file() else ""
        return heading.partition(": ")[2]

    @cached_property
    def losses(self) -> pd.DataFrame:
        """Comparisons with full attention, as losses: above 0 means worse than Full.

        A comparison without a verdict has ``cannot tell``, unless its status names why the task says nothing.
        """
        pairs = self.comparisons
        if pairs.empty:
            return pairs.assign(variant=[], loss=[], loss_low=[], loss_high=[])
        pairs = pairs[(pairs.b == REFERENCE) & (pairs.model == pairs.b_model) & (pairs.a != REFERENCE)]
        sign = pairs.better.map({"higher": -1.0, "lower": 1.0})
        ends = pd.DataFrame({"one": sign * pairs.low, "other": sign * pairs.high})
        silent = pairs.status.isin(["baseline_fails", "short", "untuned"])
        verdict = pairs.verdict.where(pairs.verdict.notna() & ~silent, "cannot tell").mask(silent, "")
        return pairs.rename(columns={"a": "variant"}).assign(
            loss=sign * pairs.difference, loss_low=ends.min(axis=1), loss_high=ends.max(axis=1), verdict=verdict
        )

    @cached_property
    def ranked(self) -> pd.DataFrame:
        """Ranks beside what they are of: ``loss``, a suite's mean, with its verdict; ``worst``, of its worst task."""
        if self.ranks.empty or self.losses.empty:
            return pd.DataFrame(columns=CELL)
        lost = self.losses[[*CELL, "loss", "unit", "verdict"]]
        worst = lost.rename(columns={"task": "worst_task", "loss": "worst"}).drop(columns=["unit", "verdict"])
        keys = [name for name in CELL if name != "task"]
        return self.ranks.merge(lost[lost.task == "all"], on=keys).merge(worst, on=[*keys, "worst_task"])

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Timed decode steps: one row a model, variant, budget, context and batch."""
        speed = self.speed
        if speed.empty:
            return speed
        timed = speed[(speed.bench == "decode") & (speed.stage == "step") & (speed.status == "ok")]
        return timed[timed.op_sizes.isna() & timed.median_us.notna()]

    @cached_property
    def suites(self) -> list[str]:
        """The suites that were scored."""
        return [] if self.summary.empty else list(dict.fromkeys(self.summary.suite))

    @cached_property
    def main_tasks(self) -> dict[str, list[str]]:
        """By suite, the tasks that stand for it: their mean where it was compared, else each."""
        found = {}
        for suite in self.suites:
            for table in (self.losses, self.summary):
                tasks = in_order(table[table.suite == suite].task) if len(table) else []
                if tasks and suite not in found:
                    found[suite] = ["all"] if "all" in tasks else tasks
        return found

    def plain(self, variants: Iterable[str]) -> list[str]:
        """Return the variants that are named as their method, and those of methods that have none."""
        found = in_order(variants)
        plain = [v for v in found if self.methods[v] == v]
        return plain + [v for v in found if self.methods[v] not in plain]

    def leading(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of the tasks that stand for their suites."""
        pairs = {(suite, task) for suite, tasks in self.main_tasks.items() for task in tasks}
        kept = [pair in pairs for pair in zip(rows.suite, rows.task, strict=True)]
        return rows[pd.Series(kept, index=rows.index, dtype=bool)]

    @property
    def data_sources(self) -> list[str]:
        """Origin of the prompts: generated, real, or both."""
        found = self.summary.data_source.dropna() if len(self.summary) else ()
        return sorted({source for each in found for source in each.split("; ")})

    @property
    def devices(self) -> list[str]:
        """The devices behind the numbers."""
        return self.devices_of({})

    def devices_of(self, where: Mapping[str, Any]) -> list[str]:
        """Return the devices behind the scores and times with these values by column."""
        found = [
            t.device[(t[list(where)] == list(where.values())).all(axis=1)] for t in (self.summary, self.speed) if len(t)
        ]
        return sorted({part for text in pd.concat(found).dropna() for part in text.split("; ")}) if found else []

    @property
    def revisions(self) -> list[str]:
        """The code revisions behind the numbers."""
        found = [t.revision.dropna() for t in (self.summary, self.speed) if len(t)]
        return sorted({part for text in pd.concat(found) for part in text.split("; ")}) if found else []


def read_run(folder: Path) -> Run:
    """Read one run.

    Raises:
        NoNumbersError: the folder holds none of the tables, or no cell of them ended well.
        ReportError: its tables are none of this version.
    """
    found = {name: read_table(folder / f"{name}.csv") for name in TABLES}
    for name in ("summary", "speed"):
        if len(found[name]) and "variant" not in found[name]:
            raise ReportError(f"{folder / name}.csv has no column 'variant'; write the tables again with this version")
    counts = pd.concat(
        [found[name].status for name in ("summary", "speed") if len(found[name])] or [pd.Series(dtype=str)]
    ).value_counts()
    if counts.empty:
        raise NoNumbersError(f"{folder}: no row in summary.csv or speed.csv; longdecode run {folder.name} writes them")
    if "ok" not in counts:
        words = ", ".join(f"{count} {status}" for status, count in counts.items())
        raise NoNumbersError(f"{folder}: every cell failed ({words}); {folder / 'logs'} says why")
    along = found["measures"]
    if len(along) and len(found["summary"]):
        suites = found["summary"][["task", "suite"]].drop_duplicates()
        along = along[along.measure == "score_along"].merge(suites, on="task").rename(columns={"at": "index"})
    else:
        along = pd.DataFrame()
    checks = folder / "instrument.json"
    config = folder / "config.yaml"
    return Run(
        name=folder.name,
        folder=folder,
        tables=found,
        along=along,
        gate=[_checked(path) for path in sorted(folder.glob("gate*/*.json"))],
        checks=json.loads(checks.read_text(encoding="utf-8"))["checks"] if checks.is_file() else (),
        older=folder.name in wording.TITLES["older"],
        config=yaml.safe_load(config.read_text(encoding="utf-8")) if config.is_file() else {},
    )


def add_run(folder: Path, target: Path) -> int:
    """Check a run from elsewhere, copy the files of its manifest but weights to a new folder; return how many.

    Raises:
        ConfigError: a run of its name is there, or a file leads out of the folder.
        ManifestError: a file is not as it was written.
        ReportError: its tables are none of this version.
    """
    from longdecode.evals import manifest

    manifest.require(folder)
    files = sorted(path for path in manifest.listed(folder) if path.suffix != manifest.WEIGHTS)
    for path in files:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{path}: leads out of {folder}")
    read_run(folder)
    if target.exists():
        raise ConfigError(f"{target} is there already; name the run otherwise (key profile) or move it away")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place, then renamed: a copy that ends early is no run.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as place:
        staged = Path(place, "run")
        for path in (folder / manifest.NAME, *files):
            copy = staged / path.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        staged.rename(target)
    return len(files)


def _checked(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {**found, "variant": path.stem}


def joined(run: Run) -> pd.DataFrame:
    """Join quality and speed by model, context, variant and budget: one row a batch and main task.

    What was not timed as it was scored has no row. A shape with random weights has the losses of the run's only model,
    which stands as ``losses_of`` beside it.
    """
    if run.losses.empty or run.steps.empty:
        return pd.DataFrame()
    sizes = run.summary.drop_duplicates(CELL)[[*CELL, "budget_tokens", "kv_tokens_read", "value"]]
    scored = _whole(run.losses.drop(columns=["batch"]).merge(sizes, on=CELL)).dropna(subset=["budget_tokens", "loss"])
    timed = _whole(run.steps).rename(columns={"ratio": "speed", "ratio_low": "speed_low", "ratio_high": "speed_high"})
    on = ["model", "context", "variant", "budget_tokens"]
    timed = timed[[*on, "weights", "batch", "speed", "speed_low", "speed_high", "median_us"]].dropna(subset=["speed"])
    scored = scored.assign(losses_of=scored.model)
    shapes = timed[(timed.weights == "random") & (scored.model.nunique() == 1)]
    rows = pd.concat([scored.merge(timed, on=on), scored.drop(columns=["model"]).merge(shapes, on=on[1:])])
    # A budget that grows was timed at a full context; most prompts are shorter, so that fewer tokens were read.
    rows = run.leading(rows[~rows.variant.isin(run.growing)])
    keys = ["model", "suite", "task", "context", "batch", "variant", "budget"]
    shares = run.pareto.reindex(columns=["steps_of", *keys[1:], "front_share"]).rename(columns={"steps_of": "model"})
    rows = rows.merge(shares.astype(rows[keys].dtypes.to_dict()), on=keys, how="left")
    return rows.drop_duplicates(["model", "context", "variant", "budget_tokens", "batch", "suite", "task"]).assign(
        title=rows.variant.map(run.title), family=rows.variant.map(run.family), run=run.name
    )


def able(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of models that are not small, which enter no recommendation where another does; else all."""
    models = rows.get("losses_of", rows.get("model", pd.Series(index=rows.index)))
    found = rows[~models.isin(wording.TITLES["small"])]
    return found if len(found) else rows


def _whole(rows: pd.DataFrame) -> pd.DataFrame:
    """Give methods without a budget, such as a quantised cache, the tokens that they read: all."""
    return rows.assign(budget_tokens=rows.budget_tokens.where(rows.budget != REFERENCE, rows.context))


def in_order(values: Iterable[Any]) -> list[Any]:
    """Return distinct values, in the order in which they first stand."""
    return list(dict.fromkeys(values))


def budget_order(text: str) -> tuple[bool, float]:
    """Return the place of a budget among others: shares and tokens by size, those by bytes last."""
    return text.startswith("bytes"), 0.0 if text == REFERENCE else float(text.removeprefix("bytes="))


def middle(budgets: Iterable[str]) -> str:
    """Return the middle one of some budgets by name; everything where there is no other."""
    named = sorted(set(budgets) - {REFERENCE}, key=budget_order)
    return named[len(named) // 2] if named else REFERENCE


def each(table: pd.DataFrame) -> Iterator[Any]:
    """Return the rows of a table one by one, columns as attributes."""
    return iter(table.itertuples(index=False))


def groups(table: pd.DataFrame, keys: Any, *, sort: bool = True) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Return the parts of a table by the values of some columns."""
    return iter(table.groupby(keys, sort=sort))


def top(table: pd.DataFrame, values: pd.Series) -> Any:
    """Return the row with the largest of some values."""
    return table.iloc[int(values.to_numpy().argmax())]
