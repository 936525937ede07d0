rule nosa_train:
    """Continue the dense checkpoint with each kind of attention: adaptors, histories and merged checkpoints."""
    input:
        [f"{fork}/model/model.safetensors" for fork in PLAN.forks.values()],


rule train_fork:
    """Train one fork; a killed run goes on from its last state."""
    input:
        model=lambda wildcards: PLAN.model_files(wildcards.model),
    output:
        model=f"{RESULTS}/forks/{{model}}/{{fork}}/model/model.safetensors",
        curve=f"{RESULTS}/forks/{{model}}/{{fork}}/curve.csv",
        overlap=f"{RESULTS}/forks/{{model}}/{{fork}}/overlap.csv",
        about=f"{RESULTS}/forks/{{model}}/{{fork}}/run.json",
    log:
        f"{RESULTS}/logs/forks/{{model}}/{{fork}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/forks/{{model}}/{{fork}}.tsv"
    conda:
        "../envs/longdecode.yaml"
    threads: PLAN.threads[0]
    resources:
        gpu=PLAN.gpus,
        torch_threads=torch_threads,
    params:
        settings=lambda wildcards: PLAN.fork_settings(wildcards.fork),
        code=PLAN.adaptation_code,
    script:
        "../scripts/train_fork.py"


if PLAN.locality:

    rule nosa_locality:
        """Overlap of consecutive steps by layer and head over forced text."""
        input:
            models=sorted(
                {
                    path
                    for model in RUN.locality.values()
                    for path in PLAN.model_files(model)
                }
            ),
        output:
            table=PLAN.locality[0],
        log:
            f"{RESULTS}/logs/locality.log",
        conda:
            "../envs/longdecode.yaml"
        threads: PLAN.threads[0]
        resources:
            gpu=PLAN.gpus,
            torch_threads=torch_threads,
        params:
            settings=repr(RUN.locality),
            code=PLAN.adaptation_code,
        script:
            "../scripts/measure_locality.py"
