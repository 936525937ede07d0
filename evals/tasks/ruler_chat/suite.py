"""RULER with its prompts in the model's chat template."""

from longdecode.evals.tasks.ruler.suite import ruler_suite

SUITE = ruler_suite(chat=True)
