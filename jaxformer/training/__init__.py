"""Training: optimizer, state, step, loop, metrics."""
