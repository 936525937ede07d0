"""Tokens that the verifier of Medusa reads."""

from longdecode.methods.rule import ReadsEverything

RULE = ReadsEverything
