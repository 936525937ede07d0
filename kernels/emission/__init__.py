"""Recording of the tokens that a step chose."""

from torch import Tensor

from longdecode.kernels.dispatch import kernel_path
from longdecode.kernels.emission import naive
from longdecode.kernels.emission.naive import Progress

__all__ = ["Progress", "record_tokens"]


def record_tokens(progress: Progress, tokens: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Append chosen tokens to the continuations; see ``naive.record_tokens``."""
    if kernel_path(tokens.device) == "triton":
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.emission.gpu import record_tokens_gpu

        return record_tokens_gpu(progress, tokens, counts)
    return naive.record_tokens(progress, tokens, counts)
