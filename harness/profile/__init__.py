"""Profiles of accelerators."""
