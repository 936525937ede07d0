"""Copy trained draft heads to where a release has them."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.training.draft_heads.ship import ship

    ship(Path(snakemake.input[0]), Path(snakemake.output[0]).parent)
