rule gate:
    """Check methods and launches on the run's device, in one process: what fails is not scored and not timed."""
    input:
        PLAN.gate_models,
    output:
        PLAN.gate_files(RUN.methods),
    log:
        f"{RESULTS}/logs/gate.log",
    conda:
        "../envs/longdecode.yaml"
    threads: PLAN.threads[0]
    resources:
        gpu=PLAN.gpus,
        torch_threads=torch_threads,
    params:
        depends=PLAN.depends("gate"),
    script:
        "../scripts/stage.py"


# One job a model and suite: variants, contexts, samples and budgets are loops inside, so that the model is loaded once and
# one prefill serves all variants. So that many GPUs are used, `jobs: context` makes one job of each context, which still
# has one prefill for all variants, and `jobs: cell` one of each variant and context.
# Earlier outputs are updated, because what still holds in them is not run again.
# A rule for each suite: which variants run on a suite, and so which files its job writes, cannot follow from a wildcard.
# Suites start in the order of the configuration: one that takes long and comes last would leave the other processors idle.
for SUITE, VARIANTS in PLAN.suite_variants.items():

    rule:
        name:
            f"evaluate_{SUITE}"
        input:
            model=lambda wildcards: PLAN.model_files(wildcards.model),
            methods=lambda wildcards, variants=VARIANTS: PLAN.method_files(
                variants_of(wildcards, variants), wildcards.model
            ),
            gates=lambda wildcards, variants=VARIANTS: PLAN.gate_files(
                variants_of(wildcards, variants)
            ),
        output:
            update(
                RECORDS.format(suite=SUITE)
                if RUN.jobs == "cell"
                else expand(
                    RECORDS.format(suite=SUITE),
                    variant=VARIANTS,
                    allow_missing=True,
                )
            ),
        log:
            f"{RESULTS}/logs/evaluate/{PART.format(suite=SUITE)}.log",
        benchmark:
            f"{RESULTS}/benchmarks/evaluate/{PART.format(suite=SUITE)}.tsv"
        priority: len(RUN.suites) - list(RUN.suites).index(SUITE)
        conda:
            "../envs/longdecode.yaml"
        threads: PLAN.threads[0]
        resources:
            gpu=PLAN.gpus,
            torch_threads=torch_threads,
        params:
            suite=SUITE,
            variants=lambda wildcards, variants=VARIANTS: variants_of(
                wildcards, variants
            ),
            depends=lambda wildcards, suite=SUITE: PLAN.depends(
                "evaluate", **part_of(wildcards, suite)
            ),
        script:
            "../scripts/stage.py"


use rule gate as throughput with:
    """Time one model, or the kernels and the device itself; nothing else may run on the machine meanwhile."""
    input:
        models=lambda wildcards: PLAN.timed_files(wildcards.job),
        gates=lambda wildcards: PLAN.gate_files(
            RUN.throughput.variants_of(wildcards.job)
        ),
    output:
        f"{RESULTS}/speed/{{job}}.parquet",
    log:
        f"{RESULTS}/logs/throughput/{{job}}.log",
    threads: PLAN.speed_threads[0]
    resources:
        gpu=PLAN.gpus,
        torch_threads=lambda wildcards, threads: (
            threads if CORES is None else PLAN.speed_threads[1]
        ),
    params:
        depends=lambda wildcards: PLAN.depends("throughput", **wildcards),


use rule gate as retrospection with:
    """Measure what selections share along a text, and how near corrected states come to Full's."""
    input:
        model=lambda wildcards: PLAN.model_files(wildcards.model),
        gates=PLAN.gate_files(RUN.retrospection.variants),
        methods=lambda wildcards: PLAN.method_files(
            RUN.retrospection.variants, wildcards.model
        ),
    output:
        f"{RESULTS}/retrospection/{{model}}.parquet",
    log:
        f"{RESULTS}/logs/retrospection/{{model}}.log",
    params:
        depends=lambda wildcards: PLAN.depends("retrospection", **wildcards),


use rule gate as write_texts with:
    """Write the texts of one long generation; a killed one goes on at the text it was at."""
    input:
        model=lambda wildcards: PLAN.model_files(
            RUN.generation.runs[wildcards.writing].model
        ),
        gates=lambda wildcards: PLAN.gate_files(
            RUN.generation.runs[wildcards.writing].named
        ),
        methods=lambda wildcards: PLAN.method_files(
            RUN.generation.runs[wildcards.writing].named,
            RUN.generation.runs[wildcards.writing].model,
        ),
    output:
        f"{RESULTS}/generation/{{writing}}.parquet",
    log:
        f"{RESULTS}/logs/generation/{{writing}}.log",
    params:
        depends=lambda wildcards: PLAN.depends("write_texts", **wildcards),


use rule gate as tune_model with:
    """Choose every method's per-model knobs on one model, with the same effort for each, on prompts that no table uses."""
    input:
        model=lambda wildcards: PLAN.model_files(wildcards.model),
        methods=lambda wildcards: PLAN.method_files(
            PLAN.tuned_methods.values(), wildcards.model
        ),
    output:
        f"{RESULTS}/tuning/{{model}}.json",
    log:
        f"{RESULTS}/logs/tuning/{{model}}.log",
    params:
        depends=lambda wildcards: PLAN.depends("tune_model", **wildcards),
