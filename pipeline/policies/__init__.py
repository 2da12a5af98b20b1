"""Decisions of the pipeline: pure, synchronous, without clock or randomness."""
