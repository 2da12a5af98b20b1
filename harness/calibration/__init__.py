"""From measurements to a section of a scenario.

`readers`, `columns`, `outcomes`, `times` and `units` read; `steps`, `requests` and `correlation` fit; `write` and `terminal`
say what was found; `calibrate` puts them together. Polars is imported inside functions: simulation never comes here.
"""
