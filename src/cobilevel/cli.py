"""Arguments only."""
