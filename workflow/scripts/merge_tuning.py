"""Put the tuning records of a model's methods into one."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.evals.tuning_spec import merge_tuning, read_tuning, write_tuning

    write_tuning(Path(snakemake.output[0]), merge_tuning([read_tuning(path) for path in snakemake.input]))
