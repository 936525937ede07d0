rule write_config:
    """The configuration as it was run, command line included."""
    output:
        f"{RESULTS}/config.yaml",
    log:
        f"{RESULTS}/logs/write_config.log",
    conda:
        "../envs/longdecode.yaml"
    params:
        config=json.dumps(config, sort_keys=False),
    script:
        "../scripts/write_config.py"


rule aggregate:
    """Records to tidy tables with intervals and paired differences."""
    input:
        config=rules.write_config.output[0],
        records=PLAN.records,
    output:
        summary=report(
            f"{RESULTS}/summary.csv",
            caption="../report/summary.rst",
            category="Results",
        ),
        along_generation=f"{RESULTS}/along_generation.parquet",
        loss_by_position=f"{RESULTS}/loss_by_position.csv",
    log:
        f"{RESULTS}/logs/aggregate.log",
    conda:
        "../envs/longdecode.yaml"
    params:
        code=PLAN.folder_hash("evals"),
    script:
        "../scripts/write_summary.py"


rule check_instrument:
    """Does the reference model do what it is known to do? Outcomes and numbers, whether or not they pass."""
    input:
        config=rules.write_config.output[0],
        records=PLAN.records,
    output:
        report(
            f"{RESULTS}/instrument.json",
            caption="../report/instrument.rst",
            category="Instrument",
        ),
    log:
        f"{RESULTS}/logs/check_instrument.log",
    conda:
        "../envs/longdecode.yaml"
    params:
        code=PLAN.folder_hash("evals"),
    script:
        "../scripts/check_instrument.py"


rule require_instrument:
    """Ends the run when a check failed; a rule of its own, so that the checks' numbers outlive the failure."""
    input:
        rules.check_instrument.output[0],
    output:
        touch(f"{RESULTS}/instrument.passed"),
    log:
        f"{RESULTS}/logs/require_instrument.log",
    conda:
        "../envs/longdecode.yaml"
    script:
        "../scripts/require_instrument.py"
