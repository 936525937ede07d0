rule throughput:
    """Times of one model, or of the kernels and the device itself; nothing else may run on the machine meanwhile."""
    input:
        model=lambda wildcards: speed_files(wildcards.job),
    output:
        f"{RESULTS}/speed/{{job}}.parquet",
    log:
        f"{RESULTS}/logs/throughput/{{job}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/throughput/{{job}}.tsv"
    conda:
        "../envs/longdecode.yaml"
    threads: SPEED_THREADS[0]
    resources:
        gpu=GPUS,
        torch_threads=SPEED_THREADS[1],
    params:
        settings=lambda wildcards: speed_settings(wildcards.job),
        code=lambda wildcards: speed_code(wildcards.job),
    script:
        "../scripts/measure_speed.py"


rule speed_summary:
    """Speed records to medians, ratios with intervals, floors, growth, break-even and breakdown."""
    input:
        config=rules.write_config.output[0],
        records=SPEED_RECORDS,
    output:
        speed=f"{RESULTS}/speed.csv",
        growth=f"{RESULTS}/growth.csv",
        breakeven=f"{RESULTS}/breakeven.csv",
        breakdown=f"{RESULTS}/breakdown.csv",
        correction=f"{RESULTS}/correction.csv",
        over_baselines=f"{RESULTS}/over_baselines.csv",
    log:
        f"{RESULTS}/logs/speed_summary.log",
    conda:
        "../envs/longdecode.yaml"
    params:
        code=folder_hash("evals/throughput"),
    script:
        "../scripts/summarise_speed.py"
