"""Generators of the training conversations. All randomness comes from the `random.Random` passed in."""
