"""The waist: what actors may ask of an engine, and the records that cross it. Standard library only."""
