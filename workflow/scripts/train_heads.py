"""Train the sets of draft heads of one model of the configuration."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.engine.config_reader import resolve_checkpoint
    from longdecode.training.draft_heads.recipe import STARTS, load_recipe
    from longdecode.training.draft_heads.train import train_heads

    asked = snakemake.wildcards
    train_heads(
        resolve_checkpoint(snakemake.params.path, snakemake.params.revision),
        asked.model,
        snakemake.params.books,
        load_recipe(asked.model),
        list(STARTS.values()),
        Path(snakemake.output[0]).parents[2],
        snakemake.params.device,
    )
