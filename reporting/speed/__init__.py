"""Report speed: the times, their figures and tables."""
