"""Actors of the pipeline: async, on the runtime alone."""
