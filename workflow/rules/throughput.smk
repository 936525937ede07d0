rule throughput:
    """Time one model, or of the kernels and the device itself; nothing else may run on the machine meanwhile."""
    input:
        models=lambda wildcards: PLAN.timed_files(wildcards.job),
        gates=lambda wildcards: PLAN.gate_files(PLAN.timed_labels(wildcards.job)),
    output:
        f"{RESULTS}/speed/{{job}}.parquet",
    log:
        f"{RESULTS}/logs/throughput/{{job}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/throughput/{{job}}.tsv"
    conda:
        "../envs/longdecode.yaml"
    threads: PLAN.speed_threads[0]
    resources:
        gpu=PLAN.gpus,
        torch_threads=lambda wildcards, threads: (
            threads if CORES is None else PLAN.speed_threads[1]
        ),
    params:
        settings=lambda wildcards: PLAN.speed_settings(wildcards.job),
        code=lambda wildcards: PLAN.speed_code(wildcards.job),
    script:
        "../scripts/measure_speed.py"


rule speed_summary:
    """Turn speed records into medians, ratios with intervals, floors, growth, break-even and breakdown."""
    input:
        config=f"{RESULTS}/config.yaml",
        records=PLAN.speed_records,
    output:
        speed=f"{RESULTS}/speed.csv",
        growth=f"{RESULTS}/growth.csv",
        breakeven=f"{RESULTS}/breakeven.csv",
        breakdown=f"{RESULTS}/breakdown.csv",
        correction=f"{RESULTS}/correction.csv",
        speculation=f"{RESULTS}/speculation.csv",
        over_baselines=f"{RESULTS}/over_baselines.csv",
    log:
        f"{RESULTS}/logs/speed_summary.log",
    conda:
        "../envs/longdecode.yaml"
    params:
        code=PLAN.folder_hash("evals/throughput"),
    script:
        "../scripts/summarise_speed.py"
