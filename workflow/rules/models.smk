from longdecode.engine.model_cache import BUILT_MODELS, cache_root


def built_from(wildcards) -> list[str]:
    """Return what a built model is made of besides its download: the adaptor, or the model whose weights it shares."""
    if wildcards.built == "smollm2-long":
        return ADAPTOR
    base = wildcards.built.removesuffix("-yarn")
    return (
        [] if base == wildcards.built else [f"{cache_root()}/{base}/model.safetensors"]
    )


rule built_model:
    """Build a model that a configuration names by one word, such as qwen2.5-coder-1.5b (three minutes, 5.2 GB of memory)."""
    input:
        built_from,
    output:
        f"{cache_root()}/{{built,{one_of(BUILT_MODELS)}}}/model.safetensors",
    log:
        "results/models/logs/{built}.log",
    conda:
        "../envs/longdecode.yaml"
    script:
        "../scripts/build_model.py"
