"""Query-independent importance of tokens and blocks, from the values alone."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.importance import naive
from longdecode.kernels.importance.naive import (
    FORMS,
    Importance,
    ImportanceWeights,
    block_importance,
    ranked,
    token_importance,
)

__all__ = [
    "FORMS",
    "Importance",
    "ImportanceWeights",
    "append_importance",
    "block_importance",
    "ranked",
    "token_importance",
]

append_importance = op(naive.append_importance)
