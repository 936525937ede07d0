"""``python -m longdecode.evals.lm_eval_adapter ...``: lm-eval's own command line, which then knows ``longdecode``."""

from dataclasses import dataclass

from lm_eval.__main__ import cli_evaluate
from lm_eval.config import evaluate_config

from longdecode.engine.errors import LongDecodeError
from longdecode.evals.lm_eval_adapter import model  # noqa: F401 (registers the model)


@dataclass(slots=True)
class _Config(evaluate_config.EvaluatorConfig):
    """lm-eval's settings with no device of their own, so that one the user names is refused where it is absent."""

    device: str | None = None


if __name__ == "__main__":
    evaluate_config.EvaluatorConfig = _Config
    try:
        cli_evaluate()
    except LongDecodeError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from None
