"""Do what a rule says: the stage of its name."""

from longdecode.stages import run_stage

if __name__ == "__main__":  # processes that share a model import this file
    run_stage(snakemake)
