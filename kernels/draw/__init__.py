"""Draw of tokens from rows of logits: the largest of each row, or with noise keyed by request and position."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.draw import naive
from longdecode.kernels.draw.naive import DrawRule, Noise, gumbel_noise, penalised, uniform_noise

__all__ = ["DrawRule", "Noise", "argmax", "draw", "gumbel_noise", "penalised", "uniform_noise"]

draw = op(naive.draw)
argmax = op(naive.argmax, gpu="argmax_gpu")
