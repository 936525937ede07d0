"""Tokens that SnapKV keeps."""

from longdecode.methods.window_rule import WindowRule

RULE = WindowRule
