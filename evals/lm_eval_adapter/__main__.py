"""``python -m longdecode.evals.lm_eval_adapter ...``: lm-eval's own command line, which then knows ``longdecode``."""

from lm_eval.__main__ import cli_evaluate

from longdecode.evals.lm_eval_adapter import model  # noqa: F401 (registers the model)

if __name__ == "__main__":
    cli_evaluate()
