"""Compare what was timed, then build the report's pages from it, before anything was scored."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.evals import manifest
    from longdecode.evals.analysis.write import write_analysis
    from longdecode.reporting.build import build_report

    config, pages = Path(snakemake.input.config), Path(snakemake.output[0]).parent
    manifest.require(config.parent, manifest.listed(config.parent))
    write_analysis(config, config.parent, Path(snakemake.input.papers[0]).parent)
    build_report(config, config.parent, pages)
    manifest.rewrite(pages)
