"""Make the page on trust and data: hardware, revisions, checks, missing results, every raw table, and older evidence."""

from __future__ import annotations

from typing import Any

import pandas as pd

from longdecode.reporting import wording
from longdecode.reporting.runs import REFERENCE, Run, in_order
from longdecode.reporting.site import Page, Site

_RAW = ("summary.csv", "speed.csv", "comparisons.csv", "measures.csv", "claims.csv", "pareto.csv", "tuning.csv", "overlap.csv", "locality.csv",
        "exact_texts.csv", "config.yaml", "manifest.txt")  # fmt: skip


def write_trust(site: Site) -> None:
    """Write trust.html."""
    runs = [_facts(site, run) for run in site.runs]
    older = [_older(run) for run in site.runs if run.older and run not in site.current]
    site.write(Page("trust"), "trust.html", runs=runs, holes=[hole for run in site.current for hole in _holes(run)], older=older)


def _facts(site: Site, run: Run) -> dict[str, Any]:
    """Return what a reader needs to know about where a run's numbers come from."""
    verdicts = [verdict["status"] == "passed" for gate in run.gate for verdict in gate.get("verdicts", ())]
    checks = [check["outcome"] == "passed" for check in run.checks]
    models = in_order([*(run.summary.model if len(run.summary) else ()), *(run.steps.model if len(run.steps) else ())])
    versions = run.gate[0].get("versions", {}) if run.gate else {}
    return {
        "name": run.name, "devices": run.devices, "revisions": run.revisions, "models": [wording.model_title(m) for m in models],
        "data": " and ".join(in_order(run.summary.data_source.dropna())) if len(run.summary) else "none: times alone",
        "prompts": f"{int(run.summary.n[run.summary.n > 0].min())} to {int(run.summary.n.max())}" if len(run.summary) else "",
        "gate": f"{sum(verdicts)} of {len(verdicts)}" if verdicts else "", "checks": f"{sum(checks)} of {len(checks)}" if checks else "",
        "versions": ", ".join(f"{name} {versions[name]}" for name in ("torch", "triton", "transformers", "cuda") if name in versions),
        "tables": [(name, site.table_link(run, name)) for name in _RAW if site.table_link(run, name)],
    }  # fmt: skip


def _holes(run: Run) -> list[dict[str, Any]]:
    """Return results that are missing, by reason: what could not run, and why."""
    found = []
    for table, what in ((run.summary, "scores"), (run.speed, "times")):
        rows = table[table.status != "ok"] if len(table) else table
        for (variant, status), part in rows.groupby(["variant", "status"]) if len(rows) else ():
            found.append({"run": run.name, "title": run.title(variant), "what": what, "status": status.replace("_", " "), "n": len(part)})
    return found


def _older(run: Run) -> dict[str, Any]:
    """Return one plain table of a run of earlier questions: the main task of each suite at its longest context."""
    rows = run.summary[run.summary.status == "ok"]
    rows = rows[[task in run.headline(suite) for suite, task in zip(rows.suite, rows.task, strict=True)]]
    rows = rows[rows.context == rows.groupby(["model", "suite"]).context.transform("max")]
    rows = rows[(rows.budget == REFERENCE) | (rows.budget == rows.groupby(["model", "suite", "variant"]).budget.transform(_middle))]
    return {"run": run, "rows": [_older_row(run, r) for r in rows.itertuples()]}


def _middle(budgets: pd.Series) -> str:
    """Return the middle one of the budgets of a variant, as it is named."""
    named = sorted(set(budgets) - {REFERENCE}, key=lambda text: float(text.removeprefix("bytes=")))
    return named[len(named) // 2] if named else REFERENCE


def _older_row(run: Run, r: Any) -> list[str]:
    scale, unit = (100, "percent") if r.unit == "fraction" else (1, r.unit)
    return [wording.model_title(r.model), run.title(r.variant), wording.task_title(r.suite, r.task), wording.tokens(r.context), wording.budget(r.budget),
            str(int(r.n)), wording.number(scale * r.value, unit), wording.interval(scale * r.low, scale * r.high, unit)]  # fmt: skip
