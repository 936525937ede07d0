"""Tokens that full attention reads."""

from longdecode.methods.rule import ReadsEverything

RULE = ReadsEverything
