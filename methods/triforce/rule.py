"""Tokens that the verifier of TriForce reads."""

from longdecode.methods.rule import ReadsEverything

RULE = ReadsEverything
