# The module that reads the adaptor imports torch, which planning does without.
SHIPPED = ROOT / "models" / "smollm2-long"
SMOLLM2_CODE = PLAN.folder_hash("training/long_context")
TRAINED = Path("results/smollm2/adaptor")
ADAPTOR = [
    str((SHIPPED if SHIPPED.is_dir() else TRAINED) / name)
    for name in ("adapter_model.safetensors", "adapter_config.json", "longdecode.json")
]


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
