"""Train the miniature; a killed run goes on from its last checkpoint."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.miniature.train import main

    books = snakemake.params.books or "emozilla/pg19"
    main(["--output", str(Path(snakemake.output[0]).parents[1]), "--books", str(books)])
