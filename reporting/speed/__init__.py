"""Report speed: the times, their figures, tables and targets."""
