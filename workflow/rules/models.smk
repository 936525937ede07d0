from longdecode.engine.model_cache import BUILT_MODELS, cache_root
from longdecode.models.sources import MODELS

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
        "../scripts/build_model.py"
