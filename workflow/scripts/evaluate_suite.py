"""Run one model, method and suite; journalled, so that a killed job goes on at its next sample."""

from pathlib import Path

from job import job

with job(snakemake):
    from longdecode.evals.run_config import build_run_config
    from longdecode.evals.runner import run_job

    config = build_run_config(snakemake.config, "configuration")
    cell = snakemake.wildcards
    run_job(config, cell.model, cell.label, cell.suite, Path(snakemake.output[0]))
