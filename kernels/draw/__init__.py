"""Draw of tokens from rows of logits, the largest or with noise keyed by request and position, and their record."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.draw import naive
from longdecode.kernels.draw.naive import DrawRule, Noise, Progress, gumbel_noise, penalised, uniform_noise

__all__ = [
    "DrawRule", "Noise", "Progress", "argmax", "draw", "gumbel_noise", "penalised", "record_tokens", "uniform_noise",
]  # fmt: skip

draw = op(naive.draw)
argmax = op(naive.argmax, gpu="argmax_gpu")
record_tokens = op(naive.record_tokens, gpu="record_gpu")
