"""LongBench with the whole prompt prefilled."""

from longdecode.evals.tasks.longbench.suite import longbench_suite

SUITE = longbench_suite(plain=True)
