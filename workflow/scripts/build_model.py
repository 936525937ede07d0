"""Build a model from its GGUF file, with the adaptor that the rule names merged."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.models.build import build
    from longdecode.models.sources import MODELS

    model = MODELS[snakemake.wildcards.built]
    adaptor = Path(snakemake.input[0]).parent if model.adaptor else None
    build(model, Path(snakemake.output[0]).parent, adaptor=adaptor)
