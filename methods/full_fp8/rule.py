"""Tokens that eight-bit attention reads, and what it reads of them."""

from __future__ import annotations

from longdecode.methods.rule import ReadsEverything
from longdecode.methods.stored_rule import StoredRule


class Fp8Rule(StoredRule, ReadsEverything):
    """Read everything, as it is stored."""

    def metadata_bytes(self, kv_length: int, bytes_per_element: int) -> int:
        """Return the bytes of the scales."""
        return self.scale_bytes()


RULE = Fp8Rule
