"""A training step's batch: its rules, its micro-batches, its documents."""
