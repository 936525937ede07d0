"""Train the draft heads of one model of the configuration."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.engine.config_reader import resolve_checkpoint
    from longdecode.heads.recipe import load_recipe
    from longdecode.heads.train import train_heads

    asked = snakemake.wildcards
    train_heads(
        resolve_checkpoint(snakemake.params.path, snakemake.params.revision),
        asked.model,
        snakemake.params.books,
        load_recipe(asked.model),
        asked.kind,
        asked.init,
        Path(snakemake.output.heads).parent,
        snakemake.params.device,
    )
