"""Train the miniature; a killed run goes on from its last checkpoint."""

import shutil
from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.training.miniature.train import main

    books = snakemake.params.books or "emozilla/pg19"
    target = Path(snakemake.output[0]).parent
    seed = snakemake.wildcards.get("seed")
    folder = target.parent if seed is None else Path("results", "miniature", f"seed{seed}")
    plan = ["--seed", seed, "--curriculum", snakemake.input.plan] if seed else []
    # On a CPU it would take days.
    main(["--output", str(folder), "--books", str(books), "--device", "cuda", *plan])
    if seed:
        shutil.copytree(folder / "weights", target, dirs_exist_ok=True)
