"""One score per KV head out of one per query head."""

from longdecode.kernels.group_reduce.naive import GROUP_REDUCTIONS, group_reduce

__all__ = ["GROUP_REDUCTIONS", "group_reduce"]
