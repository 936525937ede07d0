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
            model=lambda w: PLAN.model_files(w.model),
            methods=lambda w, variants=VARIANTS: PLAN.method_files(
                variants_of(w, variants), w.model
            ),
            gates=lambda w, variants=VARIANTS: PLAN.gate_files(variants_of(w, variants)),
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
            variants=lambda w, variants=VARIANTS: variants_of(w, variants),
            depends=lambda w, suite=SUITE: PLAN.depends("evaluate", **part_of(w, suite)),
        script:
            "../scripts/stage.py"


use rule gate as throughput with:
    """Time one model, or the kernels and the device itself; nothing else may run on the machine meanwhile."""
    input:
        models=lambda w: PLAN.timed_files(w.job),
        gates=lambda w: PLAN.timed_gates(w.job),
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
        depends=lambda w: PLAN.depends("throughput", **w),


use rule gate as retrospection with:
    """Measure what selections share along a text, and how near corrected states come to Full's."""
    input:
        model=lambda w: PLAN.model_files(w.model),
        gates=PLAN.gate_files(RUN.retrospection.variants),
        methods=lambda w: PLAN.method_files(RUN.retrospection.variants, w.model),
    output:
        f"{RESULTS}/retrospection/{{model}}.parquet",
    log:
        f"{RESULTS}/logs/retrospection/{{model}}.log",
    params:
        depends=lambda w: PLAN.depends("retrospection", **w),


use rule gate as write_texts with:
    """Write the texts of one long generation; a killed one goes on at the text it was at."""
    input:
        model=lambda w: PLAN.model_files(RUN.generation.runs[w.writing].model),
        gates=lambda w: PLAN.gate_files(RUN.generation.runs[w.writing].named),
        methods=lambda w: PLAN.method_files(
            RUN.generation.runs[w.writing].named,
            RUN.generation.runs[w.writing].model,
        ),
    output:
        f"{RESULTS}/generation/{{writing}}.parquet",
    log:
        f"{RESULTS}/logs/generation/{{writing}}.log",
    params:
        depends=lambda w: PLAN.depends("write_texts", **w),


use rule gate as tune_model with:
    """Choose every method's per-model knobs on one model, with the same effort for each, on prompts that no table uses."""
    input:
        model=lambda w: PLAN.model_files(w.model),
        methods=lambda w: PLAN.method_files(PLAN.tuned_methods.values(), w.model),
    output:
        f"{RESULTS}/tuning/{{model}}.json",
    log:
        f"{RESULTS}/logs/tuning/{{model}}.log",
    params:
        depends=lambda w: PLAN.depends("tune_model", **w),
