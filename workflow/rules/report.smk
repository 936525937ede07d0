rule report:
    """Build static pages, readable offline, with the data beside each figure."""
    input:
        config=f"{RESULTS}/config.yaml",
        records=PLAN.records,
        summary=f"{RESULTS}/summary.csv",
        instrument=f"{RESULTS}/instrument.json",
        passed=f"{RESULTS}/instrument.passed",
        speed=PLAN.speed_tables,
        analysis=PLAN.analysis,
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


rule times_report:
    """Build pages of times alone, before anything was scored; `all` builds them again with the scores."""
    input:
        config=f"{RESULTS}/config.yaml",
        speed=PLAN.speed_tables,
        papers=PLAN.declarations,
    output:
        f"{REPORT}/index.html",
    log:
        f"{RESULTS}/logs/times_report.log",
    conda:
        "../envs/longdecode.yaml"
    params:
        code=PLAN.folder_hash("reporting", "methods"),
    script:
        "../scripts/build_times_report.py"


ruleorder: report > times_report
