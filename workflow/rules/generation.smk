rule generate:
    """Write the long texts of a configuration."""
    input:
        PLAN.generation,


if PLAN.generation:

    rule write_texts:
        """Write the texts of one run; a killed one goes on at the last mark of the text it was at."""
        input:
            model=lambda wildcards: PLAN.model_files(
                RUN.generation.runs[wildcards.writing].model
            ),
            gates=lambda wildcards: PLAN.gate_files(
                PLAN.generation_labels(wildcards.writing)
            ),
            methods=lambda wildcards: PLAN.method_files(
                PLAN.generation_labels(wildcards.writing),
                RUN.generation.runs[wildcards.writing].model,
            ),
        output:
            f"{RESULTS}/generation/{{writing}}.parquet",
        log:
            f"{RESULTS}/logs/generation/{{writing}}.log",
        benchmark:
            f"{RESULTS}/benchmarks/generation/{{writing}}.tsv"
        wildcard_constraints:
            writing=one_of(RUN.generation.runs),
        conda:
            "../envs/longdecode.yaml"
        threads: PLAN.threads[0]
        resources:
            gpu=PLAN.gpus,
            torch_threads=torch_threads,
        params:
            settings=lambda wildcards: PLAN.generation_settings(wildcards.writing),
            code=PLAN.generation_code,
        script:
            "../scripts/write_texts.py"
