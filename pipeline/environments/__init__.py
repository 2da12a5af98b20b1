"""Agents and environments: a scripted and a real side behind one interface."""
