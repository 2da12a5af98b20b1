"""Search over knobs."""
