from longdecode.engine.model_cache import cache_root


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
        books=RUN.data.get("pg19"),
        code=PLAN.folder_hash("training/miniature"),
    script:
        "../scripts/train_miniature.py"


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
        books=RUN.data.get("pg19"),
        code=PLAN.folder_hash("training/miniature"),
    script:
        "../scripts/train_miniature.py"
