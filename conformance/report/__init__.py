"""Results: one model, and what renders it."""
