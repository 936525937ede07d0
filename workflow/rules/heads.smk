from longdecode.evals.plan import HEADS

UNSHIPPED = [
    name
    for name in RUN.models
    if not Path(f"models/draft_heads/{name}/heads.json").is_file()
]


rule tokenswift_train:
    """Train draft heads of every model of the configuration: TokenSwift's from two starts, Medusa's."""
    input:
        expand(
            f"{RESULTS}/heads/{{model}}/{{made}}/heads.json",
            model=RUN.models,
            made=HEADS,
        ),


rule train_heads:
    """Train a model's sets of draft heads, all from one pass of the model over the books. A killed run goes on."""
    input:
        model=lambda wildcards: PLAN.model_files(wildcards.model),
    output:
        expand(
            f"{RESULTS}/heads/{{{{model}}}}/{{made}}/{{file}}",
            made=HEADS,
            file=["heads.json", "heads.safetensors", "curve.csv", "accuracy.csv"],
        ),
    log:
        f"{RESULTS}/logs/heads/{{model}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/heads/{{model}}.tsv"
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
        code=PLAN.folder_hash("training/draft_heads"),
    script:
        "../scripts/train_heads.py"


rule ship_heads:
    """Copy a model's TokenSwift heads to models/draft_heads, in bfloat16 and with a card; what is there already stays."""
    input:
        f"{RESULTS}/heads/{{model}}/chained/zero/heads.json",
    output:
        "models/draft_heads/{model}/heads.json",
        "models/draft_heads/{model}/heads.safetensors",
        "models/draft_heads/{model}/README.md",
    log:
        f"{RESULTS}/logs/heads/{{model}}-shipped.log",
    wildcard_constraints:
        model=one_of(UNSHIPPED),
    conda:
        "../envs/longdecode.yaml"
    script:
        "../scripts/ship_heads.py"
