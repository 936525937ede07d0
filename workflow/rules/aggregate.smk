# Inputs are named by their paths: beside a reference (rules.x.output), Snakemake compares each input with all others, and
# there may be 10,000.
rule write_config:
    """Write the configuration as it was run, command line included."""
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
    """Turn records into tidy tables with intervals and paired differences."""
    input:
        config=f"{RESULTS}/config.yaml",
        records=PLAN.records,
    output:
        summary=report(
            f"{RESULTS}/summary.csv",
            caption="../report/summary.rst",
            category="Results",
        ),
        along_generation=f"{RESULTS}/along_generation.parquet",
        loss_by_position=f"{RESULTS}/loss_by_position.parquet",
    log:
        f"{RESULTS}/logs/aggregate.log",
    conda:
        "../envs/longdecode.yaml"
    params:
        code=PLAN.folder_hash("evals"),
    script:
        "../scripts/write_summary.py"


rule check_instrument:
    """Check that the reference model does what it is known to do; write outcomes and numbers, passed or not."""
    input:
        config=f"{RESULTS}/config.yaml",
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
    """End the run when a check failed; a rule of its own, so that the checks' numbers outlive the failure."""
    input:
        f"{RESULTS}/instrument.json",
    output:
        touch(f"{RESULTS}/instrument.passed"),
    log:
        f"{RESULTS}/logs/require_instrument.log",
    conda:
        "../envs/longdecode.yaml"
    script:
        "../scripts/require_instrument.py"
