rule evaluate:
    """One model, one method, one suite: contexts, samples and budgets are loops inside, so that the model is loaded once."""
    input:
        model=lambda wildcards: model_files(RUN.models[wildcards.model]),
        method=lambda wildcards: method_files(wildcards.label, wildcards.model),
    output:
        f"{RESULTS}/records/{{model}}/{{label}}/{{suite}}.parquet",
    log:
        f"{RESULTS}/logs/evaluate/{{model}}/{{label}}/{{suite}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/evaluate/{{model}}/{{label}}/{{suite}}.tsv"
    conda:
        "../envs/longdecode.yaml"
    threads: THREADS
    resources:
        gpu=GPUS,
        torch_threads=TORCH_THREADS,
    params:
        settings=lambda wildcards: cell_settings(**wildcards),
        code=lambda wildcards: method_code(wildcards.label),
    script:
        "../scripts/evaluate_suite.py"
