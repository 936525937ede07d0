"""Pages that RetroAttention's newest token reads, and what its window keeps."""

from __future__ import annotations

from torch import Tensor

from longdecode.methods.page_rule import PageRule
from longdecode.methods.rule import Positions


class RetroRule(PageRule):
    """Read Quest's pages: the newest row's selection is all that a step loads, whatever the window.

    What past rows make of those pages shows in the keys and values that they write over, which the rule is shown. It
    does not state them: tests/methods/test_retro.py holds the whole method against loops over sets of pages. With
    ``layers_per_list`` the layers that do not choose read the list above them.
    """

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return the tokens of the pages that the last choosing layer chose; everything in the first layers."""
        if layer < self.params.dense_layers or layer in self.choosing():
            self.listed = super().reads(layer, queries, keys)
        return self.listed

    def metadata_bytes(self, kv_length: int, bytes_per_element: int) -> int:
        """Return the bytes of the bounds, and of the outputs and normalisers (and queries) of the past rows."""
        kept = self.config.head_dim * bytes_per_element * (2 if self.params.retro_query == "old" else 1) + 4
        past = (self.params.window - 1) * self.config.num_layers * self.config.num_heads * kept
        return super().metadata_bytes(kv_length, bytes_per_element) + past


RULE = RetroRule
