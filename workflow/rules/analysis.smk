rule analyse:
    """Compare, once: paired differences with verdicts, what papers measure besides, and their claims."""
    input:
        config=f"{RESULTS}/config.yaml",
        records=PLAN.records,
        summary=f"{RESULTS}/summary.csv",
        speed=PLAN.speed_tables,
        overlaps=PLAN.overlap + PLAN.locality,
        retrospection=PLAN.retrospection,
        generation=PLAN.generation,
        papers=PLAN.declarations,
    output:
        PLAN.analysis,
    log:
        f"{RESULTS}/logs/analyse.log",
    conda:
        "../envs/longdecode.yaml"
    params:
        code=PLAN.folder_hash("evals"),
    script:
        "../scripts/write_analysis.py"
