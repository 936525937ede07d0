rule tokenswift_train:
    """Train draft heads of every model of the configuration: TokenSwift's and Medusa's, from the zero start."""
    input:
        expand(
            f"{RESULTS}/heads/{{model}}/{{kind}}/zero/heads.json",
            model=RUN.models,
            kind=["chained", "medusa"],
        ),


rule train_heads:
    """Train one kind of heads on one model; ``init`` is zero, or the paper's normal. A killed run goes on."""
    input:
        model=lambda wildcards: PLAN.model_files(wildcards.model),
    output:
        heads=f"{RESULTS}/heads/{{model}}/{{kind}}/{{init}}/heads.json",
        tensors=f"{RESULTS}/heads/{{model}}/{{kind}}/{{init}}/heads.safetensors",
        curve=f"{RESULTS}/heads/{{model}}/{{kind}}/{{init}}/curve.csv",
        accuracy=f"{RESULTS}/heads/{{model}}/{{kind}}/{{init}}/accuracy.csv",
    log:
        f"{RESULTS}/logs/heads/{{model}}/{{kind}}-{{init}}.log",
    wildcard_constraints:
        kind="chained|medusa",
        init="zero|normal",
    conda:
        "../envs/longdecode.yaml"
    threads: PLAN.threads[0]
    resources:
        gpu=PLAN.gpus,
        torch_threads=torch_threads,
    params:
        path=lambda wildcards: RUN.models[wildcards.model].path,
        revision=lambda wildcards: RUN.models[wildcards.model].revision,
        books=str(RUN.data["pg19"]) if RUN.data.get("pg19") else None,
        device=RUN.device,
        code=PLAN.folder_hash("heads"),
    script:
        "../scripts/train_heads.py"
