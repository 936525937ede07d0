"""Sections of a paper's page: each module makes a list of blocks from a run, for any method."""
