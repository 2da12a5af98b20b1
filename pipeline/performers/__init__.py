"""Live performers: they really do the work that a simulated world lets time pass for."""
