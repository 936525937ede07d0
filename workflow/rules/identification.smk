include: "identification_common.smk"


wildcard_constraints:
    role_run="|".join(map(re.escape, ROLE_RUNS)) or "none",


rule lychee_train:
    """Head roles of every identification run of the configuration."""
    input:
        ROLE_FILES,


rule train_roles:
    """One identification run: head roles, and the history of their training."""
    input:
        model=lambda wildcards: model_files(RUN.models[wildcards.model]),
    output:
        roles=f"{RESULTS}/identification/{{model}}/{{role_run}}/roles.json",
        curve=f"{RESULTS}/identification/{{model}}/{{role_run}}/curve.csv",
        gates=f"{RESULTS}/identification/{{model}}/{{role_run}}/gates.csv",
        about=f"{RESULTS}/identification/{{model}}/{{role_run}}/run.json",
    log:
        f"{RESULTS}/logs/identification/{{model}}/{{role_run}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/identification/{{model}}/{{role_run}}.tsv"
    conda:
        "../envs/longdecode.yaml"
    threads: THREADS
    resources:
        gpu=GPUS,
        torch_threads=TORCH_THREADS,
    params:
        settings=lambda wildcards: role_settings(wildcards.role_run),
        code=IDENTIFICATION_CODE,
    script:
        "../scripts/train_roles.py"


if OVERLAP:

    rule overlap:
        """How much the top tokens of adjacent layers overlap, head by head."""
        input:
            model=model_files(RUN.models[IDENTIFICATION.identification.overlap.model]),
        output:
            OVERLAP[0],
        log:
            f"{RESULTS}/logs/overlap.log",
        conda:
            "../envs/longdecode.yaml"
        threads: THREADS
        resources:
            gpu=GPUS,
            torch_threads=TORCH_THREADS,
        params:
            settings=repr(IDENTIFICATION.identification.overlap),
            code=IDENTIFICATION_CODE,
        script:
            "../scripts/measure_overlap.py"
