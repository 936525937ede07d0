"""Make the page on trust and data: hardware, revisions, checks, missing results, raw tables, older evidence."""

from __future__ import annotations

from typing import Any

from longdecode.reporting import wording
from longdecode.reporting.runs import REFERENCE, Run, each, groups, in_order, middle
from longdecode.reporting.site import Page, Site
from longdecode.reporting.tasks import grid

_RAW = (
    "summary.csv",
    "speed.csv",
    "comparisons.csv",
    "measures.csv",
    "claims.csv",
    "pareto.csv",
    "tuning.csv",
    "overlap.csv",
    "locality.csv",
    "exact_texts.csv",
    "config.yaml",
    "manifest.txt",
)


def write_trust(site: Site) -> None:
    """Write trust.html."""
    runs = [_facts(site, run) for run in site.runs]
    older = [_older(run) for run in site.runs if run.older and run not in site.current]
    site.write(
        Page("trust"),
        "trust.html",
        runs=runs,
        versions=in_order(run["versions"] for run in runs),
        holes=[hole for run in site.current for hole in _holes(run)],
        older=older,
    )


def _facts(site: Site, run: Run) -> dict[str, Any]:
    """Return what a reader needs to know about where a run's numbers come from."""
    verdicts = [verdict["status"] == "passed" for gate in run.gate for verdict in gate.get("verdicts", ())]
    checks = [check["outcome"] == "passed" for check in run.checks if check["outcome"] != "not run"]
    timed = run.speed[~run.speed.bench.isin(["ceiling", "kernel"])].model if len(run.speed) else ()
    models = in_order([*(run.summary.model if len(run.summary) else ()), *timed])
    versions = run.gate[0].get("versions", {}) if run.gate else {}
    return {
        "name": run.name,
        "what": run.purpose,
        "devices": run.devices,
        "revisions": run.revisions,
        "models": [wording.model_title(m) for m in models],
        "data": " and ".join(run.data_sources) or "none: times alone",
        "prompts": f"{int(run.summary.n[run.summary.n > 0].min())} to {int(run.summary.n.max())}"
        if len(run.summary)
        else "",
        "gate": f"{sum(verdicts)} of {len(verdicts)}" if verdicts else "",
        "checks": f"{sum(checks)} of {len(checks)}" if checks else "",
        "versions": ", ".join(
            f"{name} {versions[name]}" for name in ("torch", "triton", "transformers", "cuda") if name in versions
        ),
        "tables": [(name, site.table_link(run, name)) for name in _RAW if site.table_link(run, name)],
    }


def _holes(run: Run) -> list[dict[str, Any]]:
    """Return results that are missing, by reason: what could not run, and why."""
    found = []
    for table, what in ((run.summary, "scores"), (run.speed, "times")):
        rows = table[table.status != "ok"] if len(table) else table
        for (variant, status), part in groups(rows, ["variant", "status"]) if len(rows) else ():
            found.append(
                {
                    "run": run.name,
                    "title": run.title(variant),
                    "what": what,
                    "status": wording.TITLES["statuses"].get(status, status.replace("_", " ")),
                    "n": len(part),
                }
            )
    return found


def _older(run: Run) -> dict[str, Any]:
    """Return plain tables of a run of earlier questions, one a model: the main tasks at their longest context."""
    rows = run.leading(run.summary[run.summary.status == "ok"])
    rows = rows[rows.context == rows.groupby(["model", "suite"]).context.transform("max")]
    rows = rows[
        (rows.budget == REFERENCE)
        | (rows.budget == rows.groupby(["model", "suite", "variant"]).budget.transform(middle))
    ]
    rows = rows.assign(
        title=[
            f"{wording.task_title(r.suite, r.task)}, {wording.tokens(r.context)}, n = {int(r.n)}"
            for r in rows.pipe(each)
        ]
    )
    return {
        "run": run,
        "grids": [
            grid(run, part, "title", {}) | {"model": wording.model_title(model)}
            for model, part in groups(rows, "model", sort=False)
        ],
    }
