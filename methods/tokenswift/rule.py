"""Tokens that the verifier of TokenSwift reads."""

from longdecode.methods.rule import ReadsEverything

RULE = ReadsEverything
