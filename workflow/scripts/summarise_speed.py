"""Write speed.csv and its companions from all speed records."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.evals.run_config import load_run_config
    from longdecode.evals.throughput.summary import write_speed_summary

    config = Path(snakemake.input.config)
    records = [Path(path) for path in snakemake.input.records]
    write_speed_summary(records, Path(snakemake.output.speed), load_run_config(config))
