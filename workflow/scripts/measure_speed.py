"""Run one throughput job; journalled, so that a killed job goes on at its next record."""

from pathlib import Path

from job_log import logged, waiting_for_others

with logged(snakemake):
    from longdecode.evals.run_config import build_run_config, granted
    from longdecode.evals.throughput.measure import measure_speed

    config = granted(build_run_config(snakemake.config, "configuration", check_params=False), snakemake.resources.gpu)
    name, output = snakemake.wildcards.job, Path(snakemake.output[0])
    waiting_for_others(lambda: measure_speed(config, name, output))
