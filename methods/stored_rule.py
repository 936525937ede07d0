"""State in plain loops how keys and values are stored in eight bits."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.methods.rule import Rule


class StoredRule(Rule):
    """Each number is the nearest of e4m3 times a scale: its KV head's, or of a key its channel's.

    So store methods with ``kv_cache_dtype = "fp8"`` all but their first two layers, and ``full_fp8`` all but
    ``exact_layers``.
    """

    prompt = 0

    @property
    def exact_layers(self) -> int:
        """Return how many first layers are stored as they are."""
        fp8 = getattr(self.params, "kv_cache_dtype", "auto") == "fp8"
        return int(getattr(self.params, "exact_layers", 2 if fp8 else self.config.num_layers))

    def element_bytes(self, layer: int, bytes_per_element: int) -> int:
        """Return the bytes of a number of this layer."""
        return bytes_per_element if layer < self.exact_layers else 1

    def scale_bytes(self) -> int:
        """Return the bytes of all scales: by KV head one a channel of keys, one of values."""
        layers = max(0, self.config.num_layers - self.exact_layers)
        return 4 * (self.config.head_dim + 1) * layers * self.config.num_kv_heads

    def see_prompt(self, layer: int, queries: Tensor, keys: Tensor) -> None:
        """Note the prompt's length, whose largest numbers set the scales."""
        self.prompt = keys.shape[1]

    def stored(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers that the codes stand for; exact ones in the first layers."""
        if layer < self.exact_layers:
            return keys, values
        by_channel = getattr(self.params, "key_scale", "channel") == "channel"
        return self.rounded(keys, by_channel), self.rounded(values, False)

    def rounded(self, x: Tensor, by_channel: bool) -> Tensor:
        """Return each head's numbers on its grid: 3 bits behind the leading one, exponents from -6 on, 448 at most."""
        normal = [(8 + mantissa) * 2.0 ** (exponent - 3) for exponent in range(-6, 9) for mantissa in range(8)]
        grid = torch.tensor([0.0, *(step * 2.0**-9 for step in range(1, 8)), *normal[:-1]], dtype=torch.float64)
        scale = x[:, : self.prompt].abs().amax(dim=(1, 2), keepdim=True) / 448.0
        if by_channel:  # the largest number of a channel has half of the largest code
            own = x[:, : self.prompt].abs().amax(dim=1, keepdim=True) / 224.0
            scale = torch.where(own > 0, own, scale)
        wanted = (x / torch.where(scale > 0, scale, 1.0)).clamp(-448.0, 448.0).float().double()
        above = torch.searchsorted(grid, wanted.abs()).clamp(1, len(grid) - 1)
        low, high = grid[above - 1], grid[above]
        nearer_high = (high - wanted.abs()) < (wanted.abs() - low)
        tie_to_even = ((high - wanted.abs()) == (wanted.abs() - low)) & (above % 2 == 0)
        return torch.where(nearer_high | tie_to_even, high, low) * wanted.sign() * torch.where(scale > 0, scale, 1.0)
