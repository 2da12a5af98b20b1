"""Numerics of the learner."""
