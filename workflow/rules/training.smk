from longdecode.engine.config_reader import BUILT_MODELS, cache_root
from longdecode.evals.plan import HEADS
from longdecode.models.sources import MODELS

# The module that reads the adaptor imports torch, which planning does without.
SHIPPED = ROOT / "models" / "smollm2-long"
TRAINED = Path("results/smollm2/adaptor")
ADAPTOR = [
    str((SHIPPED if SHIPPED.is_dir() else TRAINED) / name)
    for name in ("adapter_model.safetensors", "adapter_config.json", "longdecode.json")
]
# What a model is made of besides its download: the weights that it shares, or the adaptor.
MADE_OF = {"smollm2-long": ADAPTOR} | {
    model.name: f"{cache_root()}/{model.base}/model.safetensors"
    for model in MODELS.values()
    if model.base
}
UNSHIPPED = [
    name
    for name in RUN.models
    if not Path(f"models/draft_heads/{name}/heads.json").is_file()
]


rule built_model:
    """Build a model that a configuration names by one word, such as qwen2.5-coder-1.5b (three minutes, 5.2 GB of memory)."""
    input:
        lambda wildcards: MADE_OF.get(wildcards.built, []),
    output:
        f"{cache_root()}/{{built,{one_of(BUILT_MODELS)}}}/model.safetensors",
    log:
        "results/models/logs/{built}.log",
    conda:
        "../envs/longdecode.yaml"
    script:
        "../scripts/stage.py"


rule train_roles:
    """Train one set of head roles, with the history of its training."""
    input:
        lambda wildcards: PLAN.model_files(wildcards.model),
    output:
        roles=f"{RESULTS}/identification/{{model}}/{{role_run}}/roles.json",
        curve=f"{RESULTS}/identification/{{model}}/{{role_run}}/curve.csv",
        gates=f"{RESULTS}/identification/{{model}}/{{role_run}}/gates.csv",
        about=f"{RESULTS}/identification/{{model}}/{{role_run}}/run.json",
    log:
        f"{RESULTS}/logs/identification/{{model}}/{{role_run}}.log",
    conda:
        "../envs/longdecode.yaml"
    threads: PLAN.threads[0]
    resources:
        gpu=PLAN.gpus,
        torch_threads=torch_threads,
    params:
        depends=lambda wildcards: PLAN.depends("train_roles", **wildcards),
    script:
        "../scripts/stage.py"


rule train_fork:
    """Continue a checkpoint with one kind of attention; a killed run goes on from its last state."""
    input:
        lambda wildcards: PLAN.model_files(wildcards.model),
    output:
        model=f"{RESULTS}/forks/{{model}}/{{fork}}/model/model.safetensors",
        curve=f"{RESULTS}/forks/{{model}}/{{fork}}/curve.csv",
        overlap=f"{RESULTS}/forks/{{model}}/{{fork}}/overlap.csv",
        about=f"{RESULTS}/forks/{{model}}/{{fork}}/run.json",
    log:
        f"{RESULTS}/logs/forks/{{model}}/{{fork}}.log",
    conda:
        "../envs/longdecode.yaml"
    threads: PLAN.threads[0]
    resources:
        gpu=PLAN.gpus,
        torch_threads=torch_threads,
    params:
        depends=lambda wildcards: PLAN.depends("train_fork", **wildcards),
    script:
        "../scripts/stage.py"


rule train_heads:
    """Train a model's sets of draft heads, all from one pass of the model over the books. A killed run goes on."""
    input:
        lambda wildcards: PLAN.model_files(wildcards.model),
    output:
        expand(
            f"{RESULTS}/heads/{{{{model}}}}/{{made}}/{{file}}",
            made=HEADS,
            file=["heads.json", "heads.safetensors", "curve.csv", "accuracy.csv"],
        ),
    log:
        f"{RESULTS}/logs/heads/{{model}}.log",
    conda:
        "../envs/longdecode.yaml"
    threads: PLAN.threads[0]
    resources:
        gpu=PLAN.gpus,
        torch_threads=torch_threads,
    params:
        depends=lambda wildcards: PLAN.depends("train_heads", **wildcards),
    script:
        "../scripts/stage.py"


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
        "../scripts/stage.py"


rule overlap:
    """Overlap of adjacent layers' top tokens, head by head."""
    input:
        [path for model in RUN.overlap for path in PLAN.model_files(model)],
    output:
        f"{RESULTS}/overlap.csv",
    log:
        f"{RESULTS}/logs/overlap.log",
    conda:
        "../envs/longdecode.yaml"
    threads: PLAN.threads[0]
    resources:
        gpu=PLAN.gpus,
        torch_threads=torch_threads,
    params:
        depends=PLAN.depends("overlap"),
    script:
        "../scripts/stage.py"


rule nosa_locality:
    """Overlap of consecutive steps by layer and head over forced text, and traces that the host cache can replay."""
    input:
        sorted(
            path
            for model in {*RUN.locality.values()}
            for path in PLAN.model_files(model)
        ),
    output:
        table=f"{RESULTS}/locality.csv",
        traces=[f"{RESULTS}/traces/{variant}.npz" for variant in RUN.locality],
    log:
        f"{RESULTS}/logs/locality.log",
    conda:
        "../envs/longdecode.yaml"
    threads: PLAN.threads[0]
    resources:
        gpu=PLAN.gpus,
        torch_threads=torch_threads,
    params:
        depends=PLAN.depends("locality"),
    script:
        "../scripts/stage.py"


rule miniature_train:
    """Train the reference model anew (a GPU; seven minutes on an H200); a killed run goes on from its last checkpoint."""
    output:
        "results/miniature/weights/model.safetensors",
    log:
        "results/miniature/logs/train.log",
    conda:
        "../envs/longdecode.yaml"
    threads: CORES or 8
    resources:
        gpu=1,
    params:
        depends=PLAN.folder_hash("training/miniature"),
    script:
        "../scripts/stage.py"


rule miniature_seed:
    """Train one more miniature from another seed, to 8,192 tokens (a GPU; some two minutes on an H200): a model `{path: miniature-seed1}` asks for it."""
    input:
        plan=str(ROOT / "training" / "miniature" / "curriculum-8k.yaml"),
    output:
        f"{cache_root()}/miniature-seed{{seed,[0-9]+}}/model.safetensors",
    log:
        "results/miniature/logs/seed{seed}.log",
    conda:
        "../envs/longdecode.yaml"
    threads: 8
    resources:
        gpu=1,
    params:
        depends=PLAN.folder_hash("training/miniature"),
    script:
        "../scripts/stage.py"


rule smollm2_train:
    """Train the long-context adaptor anew (six minutes of an H200, 90 GB); a killed run goes on from its last checkpoint."""
    input:
        model=f"{cache_root()}/smollm2/model.safetensors",
    output:
        [str(TRAINED / Path(name).name) for name in ADAPTOR],
    log:
        "results/smollm2/logs/train.log",
    conda:
        "../envs/longdecode.yaml"
    threads: CORES or 8
    resources:
        gpu=1,
    params:
        depends=PLAN.folder_hash("training/long_context"),
    script:
        "../scripts/stage.py"
