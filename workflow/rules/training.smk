from longdecode.engine.config_reader import BUILT_MODELS, cache_root
from longdecode.evals.plan import HEADS, ROLE_FILES
from longdecode.models.sources import MODELS

# The module that reads the adaptor imports torch, which planning does without.
SHIPPED = ROOT / "models" / "smollm2-long"
TRAINED = Path("results/smollm2/adaptor")
HEAD_FILES = ["heads.json", "heads.safetensors", "curve.csv", "accuracy.csv"]
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


use rule gate as train_roles with:
    """Train one set of head roles, with the history of its training."""
    input:
        lambda wildcards: PLAN.model_files(wildcards.model),
    output:
        [f"{RESULTS}/identification/{{model}}/{{role_run}}/{f}" for f in ROLE_FILES],
    log:
        f"{RESULTS}/logs/identification/{{model}}/{{role_run}}.log",
    params:
        depends=lambda wildcards: PLAN.depends("train_roles", **wildcards),


use rule train_roles as train_fork with:
    """Continue a checkpoint with one kind of attention; a killed run goes on from its last state."""
    output:
        model=f"{RESULTS}/forks/{{model}}/{{fork}}/model/model.safetensors",
        curve=f"{RESULTS}/forks/{{model}}/{{fork}}/curve.csv",
        about=f"{RESULTS}/forks/{{model}}/{{fork}}/run.json",
    log:
        f"{RESULTS}/logs/forks/{{model}}/{{fork}}.log",
    params:
        depends=lambda wildcards: PLAN.depends("train_fork", **wildcards),


use rule train_roles as train_heads with:
    """Train a model's sets of draft heads, all from one pass of the model over the books. A killed run goes on."""
    output:
        [f"{RESULTS}/heads/{{model}}/{made}/{f}" for made in HEADS for f in HEAD_FILES],
    log:
        f"{RESULTS}/logs/heads/{{model}}.log",
    params:
        depends=lambda wildcards: PLAN.depends("train_heads", **wildcards),


use rule gate as overlap with:
    """Overlap of adjacent layers' top tokens, head by head."""
    input:
        [path for model in RUN.overlap for path in PLAN.model_files(model)],
    output:
        f"{RESULTS}/overlap.csv",
    log:
        f"{RESULTS}/logs/overlap.log",
    params:
        depends=PLAN.depends("overlap"),


use rule gate as nosa_locality with:
    """Overlap of consecutive steps by layer and head over forced text."""
    input:
        [PLAN.model_files(m) for m in sorted({*sum(RUN.locality.values(), ())})],
    output:
        f"{RESULTS}/locality.csv",
    log:
        f"{RESULTS}/logs/locality.log",
    params:
        depends=PLAN.depends("locality"),


use rule built_model as miniature_train with:
    """Train the reference model anew (a GPU; seven minutes on an H200); a killed run goes on from its last checkpoint."""
    input:
        [],
    output:
        "results/miniature/weights/model.safetensors",
    log:
        "results/miniature/logs/train.log",
    threads: CORES or 8
    resources:
        gpu=1,
    params:
        depends=lambda wildcards: PLAN.code_of("training.miniature.train"),


use rule miniature_train as smollm2_train with:
    """Train the long-context adaptor anew (six minutes of an H200, 90 GB); a killed run goes on from its last checkpoint."""
    input:
        model=f"{cache_root()}/smollm2/model.safetensors",
    output:
        [str(TRAINED / Path(name).name) for name in ADAPTOR],
    log:
        "results/smollm2/logs/train.log",
    params:
        depends=lambda wildcards: PLAN.code_of("training.long_context.train"),
