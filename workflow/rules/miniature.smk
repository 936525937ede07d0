rule miniature_train:
    """Trains the reference model anew (a GPU; seven minutes on an H200); killed, it goes on from its last checkpoint."""
    output:
        "results/miniature/weights/model.safetensors",
    log:
        "results/miniature/logs/train.log",
    conda:
        "../envs/longdecode.yaml"
    threads: workflow.cores or 8
    resources:
        gpu=1,
    params:
        books=RUN.data.get("pg19"),
        code=PLAN.folder_hash("miniature"),
    script:
        "../scripts/train_miniature.py"
