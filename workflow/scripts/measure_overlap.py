"""Measure how much the top tokens of adjacent layers overlap."""

from pathlib import Path

from job import job

with job(snakemake):
    from longdecode.identification.overlap import measure_overlap
    from longdecode.identification.plan import build_plan

    measure_overlap(build_plan(snakemake.config, "configuration"), Path(snakemake.output[0]))
