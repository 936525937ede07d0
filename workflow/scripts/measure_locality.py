"""Measure the overlap of consecutive steps, and keep the traces."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.evals.run_config import build_run_config, granted
    from longdecode.training.forks.locality import measure_locality

    config = granted(build_run_config(snakemake.config, "configuration", check_params=False), snakemake.resources.gpu)
    measure_locality(config, Path(snakemake.output.table))
