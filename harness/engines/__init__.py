"""Engines: the waist on trio and the system clock (live), on SimPy (sim), on trio stepped by SimPy (virtual)."""
