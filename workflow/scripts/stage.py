"""Do what a rule says: the stage of its name."""

from longdecode.stages import run_stage

run_stage(snakemake)
