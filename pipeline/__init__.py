"""The system under study: the asynchronous rollout/learner pipeline, written once."""
