"""Draw of tokens from rows of logits, with noise keyed by request and position."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.draw import naive
from longdecode.kernels.draw.naive import DrawRule, Noise, penalised
from longdecode.kernels.draw.noise import gumbel_noise, uniform_noise

__all__ = ["DrawRule", "Noise", "draw", "gumbel_noise", "penalised", "uniform_noise"]


def draw(
    logits: Tensor, count: int, rule: DrawRule, noise: Noise | None = None, history: Tensor | None = None
) -> Tensor:
    """Tokens ``[N, count]`` of each row's largest scores; see ``naive.draw``."""
    if use_triton(logits):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.draw.gpu import draw_gpu

        return draw_gpu(logits, count, rule, noise, history)
    return naive.draw(logits, count, rule, noise, history)
