# Inputs are named by their paths: beside a reference (rules.x.output), Snakemake compares each input with all others, and
# there may be 10,000.
rule tables:
    """Turn records into tables, in one process: cells, times, comparisons, claims, and the checks of the instrument."""
    input:
        records=PLAN.records,
        speed=PLAN.speed_records,
        overlaps=PLAN.overlap + PLAN.locality,
        retrospection=PLAN.retrospection,
        generation=PLAN.generation,
        papers=PLAN.declarations,
    output:
        config=f"{RESULTS}/config.yaml",
        instrument=report(
            f"{RESULTS}/instrument.json",
            caption="../report/instrument.rst",
            category="Instrument",
        ),
        analysis=report(
            PLAN.analysis, caption="../report/summary.rst", category="Results"
        ),
    log:
        f"{RESULTS}/logs/tables.log",
    conda:
        "../envs/longdecode.yaml"
    params:
        config=json.dumps(config, sort_keys=False),
        depends=PLAN.folder_hash("analysis", "evals", "reporting/papers"),
    script:
        "../scripts/stage.py"


use rule tables as report with:
    """Build static pages, readable offline, with the data beside each figure; a failed instrument check ends the run."""
    input:
        config=f"{RESULTS}/config.yaml",
        records=PLAN.records,
        tables=PLAN.analysis + [f"{RESULTS}/instrument.json"],
        training=PLAN.role_files + PLAN.overlap,
        retrospection=PLAN.retrospection,
        generation=PLAN.generation,
        tuning=PLAN.tuned_on,
    output:
        report(
            f"{REPORT}/index.html", caption="../report/index.rst", category="Results"
        ),
    log:
        f"{RESULTS}/logs/report.log",
    params:
        depends=PLAN.folder_hash("reporting", "methods"),
