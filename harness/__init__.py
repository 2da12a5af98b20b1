"""Rollout Harness: one asynchronous RL pipeline, run live or in virtual time."""
