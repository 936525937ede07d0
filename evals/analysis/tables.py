"""Name the tables that analysis writes to a run's results."""

from __future__ import annotations

ANALYSIS_TABLES = ("comparisons.csv", "measures.csv", "claims.csv")
