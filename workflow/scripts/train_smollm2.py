"""Train the long-context adaptor; a killed run goes on from its last checkpoint."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    import torch

    from longdecode.engine.errors import ConfigError, DataUnavailableError
    from longdecode.training.long_context.books import tokenise
    from longdecode.training.long_context.train import main

    if not torch.cuda.is_available():
        raise ConfigError(
            "training the long-context adaptor needs a CUDA device; train it elsewhere and put the folder "
            "results/smollm2/adaptor at models/smollm2-long, or name the model smollm2 (8,192 tokens), which needs none"
        )
    if not snakemake.params.books:
        raise DataUnavailableError(
            "data.pg19 names no folder of books; training/long_context/books.yaml lists those needed"
        )
    model, output = Path(snakemake.input.model).parent, Path(snakemake.output[0]).parents[1]
    ids = output / "books.npz"
    if not ids.is_file():
        tokenise(Path(snakemake.params.books), model, ids)
    main(["--model", str(model), "--books", str(ids), "--output", str(output)])
