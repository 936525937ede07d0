"""Measure overlapping selections and the distance of corrected states from Full's."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.evals.retrospection.job import measure_retrospection
    from longdecode.evals.run_config import build_run_config, granted

    config = granted(build_run_config(snakemake.config, "configuration", check_params=False), snakemake.resources.gpu)
    measure_retrospection(config, snakemake.wildcards.model, Path(snakemake.output[0]))
