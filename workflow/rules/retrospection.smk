if PLAN.retrospection:

    rule retrospection:
        """Measure what selections share along a text, and how near corrected states come to Full's."""
        input:
            model=lambda wildcards: PLAN.model_files(wildcards.model),
            gates=PLAN.gate_files(RUN.retrospection.labels),
            methods=lambda wildcards: PLAN.method_files(
                RUN.retrospection.labels, wildcards.model
            ),
        output:
            f"{RESULTS}/retrospection/{{model}}.parquet",
        log:
            f"{RESULTS}/logs/retrospection/{{model}}.log",
        benchmark:
            f"{RESULTS}/benchmarks/retrospection/{{model}}.tsv"
        conda:
            "../envs/longdecode.yaml"
        threads: PLAN.threads[0]
        resources:
            gpu=PLAN.gpus,
            torch_threads=torch_threads,
        params:
            settings=lambda wildcards: PLAN.retrospection_settings(wildcards.model),
            code=PLAN.retrospection_code,
        script:
            "../scripts/measure_retrospection.py"
