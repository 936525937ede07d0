rule gate:
    """Conformance of a label's method on the run's device: what fails is not scored and not timed."""
    output:
        f"{RESULTS}/gate/{{label}}.json",
    log:
        f"{RESULTS}/logs/gate/{{label}}.log",
    conda:
        "../envs/longdecode.yaml"
    threads: PLAN.threads[0]
    resources:
        gpu=PLAN.gpus,
        torch_threads=PLAN.threads[1],
    params:
        settings=lambda wildcards: PLAN.gate_settings(wildcards.label),
        code=lambda wildcards: PLAN.gate_code(wildcards.label),
    script:
        "../scripts/check_gate.py"


# One job a model and suite: labels, contexts, samples and budgets are loops inside, so that the model is loaded once and
# one prefill serves all labels. Earlier outputs are updated, because what still holds in them is not run again.
for SUITE, LABELS in PLAN.suite_labels.items():

    rule:
        name:
            f"evaluate_{SUITE}"
        input:
            model=lambda wildcards: PLAN.model_files(wildcards.model),
            methods=lambda wildcards, labels=LABELS: PLAN.method_files(
                labels, wildcards.model
            ),
            gates=PLAN.gate_files(LABELS),
        output:
            update(
                expand(
                    f"{RESULTS}/records/{{{{model}}}}/{{label}}/{SUITE}.parquet",
                    label=LABELS,
                )
            ),
        log:
            f"{RESULTS}/logs/evaluate/{{model}}/{SUITE}.log",
        benchmark:
            f"{RESULTS}/benchmarks/evaluate/{{model}}/{SUITE}.tsv"
        conda:
            "../envs/longdecode.yaml"
        threads: PLAN.threads[0]
        resources:
            gpu=PLAN.gpus,
            torch_threads=PLAN.threads[1],
        params:
            suite=SUITE,
            labels=LABELS,
            settings=lambda wildcards, suite=SUITE: PLAN.suite_settings(
                wildcards.model, suite
            ),
            code=lambda wildcards, suite=SUITE: PLAN.suite_code(suite),
        script:
            "../scripts/evaluate_suite.py"
