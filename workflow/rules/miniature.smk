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
        code=PLAN.folder_hash("miniature"),
    script:
        "../scripts/train_miniature.py"
