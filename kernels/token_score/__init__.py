"""How one query row weighs every token of the cache."""

from longdecode.kernels.token_score.naive import token_logits, token_probabilities

__all__ = ["token_logits", "token_probabilities"]
