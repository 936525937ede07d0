"""Tokens that the verifier of speculative decoding reads."""

from __future__ import annotations

from longdecode.methods.registry import get_method, get_rule
from longdecode.methods.rule import ReadsEverything


class SpeculateRule(ReadsEverything):
    """Read everything: what drafts changes no output."""

    def metadata_bytes(self, kv_length: int, bytes_per_element: int) -> int:
        """Return the drafter's bytes, once for each draft; a drafter without a rule is taken to read none."""
        rule = get_rule(self.params.drafter)
        if rule is None:
            return 0
        drafter = get_method(self.params.drafter).Params(**self.params.drafter_params)
        one = rule(drafter, self.budget, self.config).metadata_bytes(kv_length, bytes_per_element)
        return self.params.draft_tokens * one


RULE = SpeculateRule
