rule report:
    """Build static pages, readable offline, with the data beside each figure."""
    input:
        config=rules.write_config.output[0],
        records=PLAN.records,
        summary=rules.aggregate.output.summary,
        instrument=rules.check_instrument.output[0],
        passed=rules.require_instrument.output[0],
        speed=PLAN.speed_tables,
        identification=PLAN.role_files + PLAN.overlap,
        retrospection=PLAN.retrospection,
        generation=PLAN.generation,
        tuning=PLAN.tuned_on,
    output:
        report(
            f"{REPORT}/index.html",
            caption="../report/index.rst",
            category="Results",
        ),
    log:
        f"{RESULTS}/logs/report.log",
    conda:
        "../envs/longdecode.yaml"
    params:
        code=PLAN.folder_hash("reporting", "methods"),
    script:
        "../scripts/build_report.py"
