localrules:
    tune,
    merge_tuning,


rule tune:
    """Choose every method's per-model knobs on tuning prompts, on each model of the run."""
    input:
        PLAN.tuning_files,


rule tune_method:
    """Tune one method on one model, with the same effort as every other."""
    input:
        model=lambda wildcards: PLAN.model_files(wildcards.model),
        methods=lambda wildcards: PLAN.method_files(
            [PLAN.tuned_methods[wildcards.method]], wildcards.model
        ),
    output:
        temp(f"{RESULTS}/tuning/{{model}}/{{method}}.json"),
    log:
        f"{RESULTS}/logs/tuning/{{model}}/{{method}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/tuning/{{model}}/{{method}}.tsv"
    conda:
        "../envs/longdecode.yaml"
    threads: PLAN.threads[0]
    resources:
        gpu=PLAN.gpus,
        torch_threads=torch_threads,
    params:
        settings=lambda wildcards: PLAN.tuning_settings(
            wildcards.model, wildcards.method
        ),
    script:
        "../scripts/tune.py"


rule merge_tuning:
    """Put what was tuned method by method into a model's record, results/<profile>/tuning/<model>.json."""
    input:
        expand(
            f"{RESULTS}/tuning/{{model}}/{{method}}.json",
            method=PLAN.tuned_methods,
            allow_missing=True,
        ),
    output:
        f"{RESULTS}/tuning/{{model}}.json",
    log:
        f"{RESULTS}/logs/tuning/{{model}}.log",
    conda:
        "../envs/longdecode.yaml"
    script:
        "../scripts/merge_tuning.py"
