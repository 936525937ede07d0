"""The report's part on speed: what was timed, its figures, tables and targets."""
