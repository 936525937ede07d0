rule gate:
    """Check a label's method and its launches on the run's device: what fails is not scored and not timed."""
    input:
        lambda wildcards: PLAN.gate_models(wildcards.label),
    output:
        f"{RESULTS}/gate/{{label}}.json",
    log:
        f"{RESULTS}/logs/gate/{{label}}.log",
    conda:
        "../envs/longdecode.yaml"
    threads: PLAN.threads[0]
    resources:
        gpu=PLAN.gpus,
        torch_threads=torch_threads,
    params:
        settings=lambda wildcards: PLAN.gate_settings(wildcards.label),
        code=lambda wildcards: PLAN.gate_code(wildcards.label),
    script:
        "../scripts/check_gate.py"


# One job a model and suite: labels, contexts, samples and budgets are loops inside, so that the model is loaded once and
# one prefill serves all labels. So that many GPUs are used, `jobs: context` makes one job of each context, which still
# has one prefill for all labels, and `jobs: cell` one of each label and context.
# Earlier outputs are updated, because what still holds in them is not run again.
for SUITE, LABELS in PLAN.suite_labels.items():

    rule:
        name:
            f"evaluate_{SUITE}"
        input:
            model=lambda wildcards: PLAN.model_files(wildcards.model),
            methods=lambda wildcards, labels=LABELS: PLAN.method_files(
                labels_of(wildcards, labels), wildcards.model
            ),
            gates=lambda wildcards, labels=LABELS: PLAN.gate_files(
                labels_of(wildcards, labels)
            ),
        output:
            update(
                RECORDS.format(suite=SUITE)
                if RUN.jobs == "cell"
                else expand(
                    RECORDS.format(suite=SUITE),
                    label=LABELS,
                    allow_missing=True,
                )
            ),
        log:
            f"{RESULTS}/logs/evaluate/{PART.format(suite=SUITE)}.log",
        benchmark:
            f"{RESULTS}/benchmarks/evaluate/{PART.format(suite=SUITE)}.tsv"
        conda:
            "../envs/longdecode.yaml"
        threads: PLAN.threads[0]
        resources:
            gpu=PLAN.gpus,
            torch_threads=torch_threads,
        params:
            suite=SUITE,
            labels=lambda wildcards, labels=LABELS: labels_of(wildcards, labels),
            settings=lambda wildcards, suite=SUITE: PLAN.suite_settings(
                wildcards.model, suite, *part_of(wildcards)
            ),
            code=lambda wildcards, suite=SUITE: PLAN.suite_code(
                suite, *part_of(wildcards)[:1]
            ),
        script:
            "../scripts/evaluate_suite.py"
