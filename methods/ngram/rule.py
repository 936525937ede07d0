"""Tokens that the verifier of prompt lookup reads."""

from longdecode.methods.rule import ReadsEverything

RULE = ReadsEverything
