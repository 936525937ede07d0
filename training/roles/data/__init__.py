"""Training data: passkeys, HotpotQA, and the miniature's own kinds."""
