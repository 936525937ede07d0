rule tune:
    """Choose every method's per-model knobs on tuning prompts, on each model of the run."""
    input:
        PLAN.tuning_files,


rule tune_model:
    """Tune all methods on one model, with the same effort each; the record goes to results/<profile>/tuning."""
    input:
        model=lambda wildcards: PLAN.model_files(wildcards.model),
        methods=lambda wildcards: PLAN.method_files(RUN.methods, wildcards.model),
    output:
        f"{RESULTS}/tuning/{{model}}.json",
    log:
        f"{RESULTS}/logs/tuning/{{model}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/tuning/{{model}}.tsv"
    conda:
        "../envs/longdecode.yaml"
    threads: PLAN.threads[0]
    resources:
        gpu=PLAN.gpus,
        torch_threads=torch_threads,
    params:
        settings=lambda wildcards: PLAN.tuning_settings(wildcards.model),
    script:
        "../scripts/tune.py"
