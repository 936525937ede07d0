"""Measure how much the top tokens of adjacent layers overlap."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.identification.overlap import measure_overlap
    from longdecode.identification.plan import build_plan

    measure_overlap(build_plan(snakemake.config, "configuration"), Path(snakemake.output[0]))
