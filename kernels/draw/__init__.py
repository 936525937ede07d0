"""Draw of tokens from rows of logits, with noise keyed by request and position."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.draw import naive
from longdecode.kernels.draw.naive import DrawRule, Noise, penalised
from longdecode.kernels.draw.noise import gumbel_noise, uniform_noise

__all__ = ["DrawRule", "Noise", "draw", "gumbel_noise", "penalised", "uniform_noise"]

draw = op(naive.draw)
