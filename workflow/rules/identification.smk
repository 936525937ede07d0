rule lychee_train:
    """Learn the head roles of every identification run."""
    input:
        PLAN.role_files,


rule train_roles:
    """Train one identification run: head roles, and the history of their training."""
    input:
        model=lambda wildcards: PLAN.model_files(wildcards.model),
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
    threads: PLAN.threads[0]
    resources:
        gpu=PLAN.gpus,
        torch_threads=torch_threads,
    params:
        settings=lambda wildcards: PLAN.role_settings(wildcards.role_run),
        code=PLAN.identification_code,
    script:
        "../scripts/train_roles.py"


if PLAN.overlap:

    rule overlap:
        """Overlap of adjacent layers' top tokens, head by head."""
        input:
            model=[path for model in RUN.overlap for path in PLAN.model_files(model)],
        output:
            PLAN.overlap[0],
        log:
            f"{RESULTS}/logs/overlap.log",
        conda:
            "../envs/longdecode.yaml"
        threads: PLAN.threads[0]
        resources:
            gpu=PLAN.gpus,
            torch_threads=torch_threads,
        params:
            settings=repr(RUN.overlap),
            code=PLAN.identification_code,
        script:
            "../scripts/measure_overlap.py"
