# One job a model and suite: labels, contexts, samples and budgets are loops inside, so that the model is loaded once and
# one prefill serves all labels. Earlier outputs are updated, because what still holds in them is not run again.
for SUITE, LABELS in SUITE_LABELS.items():

    rule:
        name:
            f"evaluate_{SUITE}"
        input:
            model=lambda wildcards: model_files(RUN.models[wildcards.model]),
            methods=lambda wildcards, labels=LABELS: sorted(
                {
                    file
                    for label in labels
                    for file in method_files(label, wildcards.model)
                }
            ),
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
        threads: THREADS
        resources:
            gpu=GPUS,
            torch_threads=TORCH_THREADS,
        params:
            suite=SUITE,
            labels=LABELS,
            settings=lambda wildcards, suite=SUITE: suite_settings(
                wildcards.model, suite
            ),
            code=suite_code(SUITE),
        script:
            "../scripts/evaluate_suite.py"
