"""What things cost: latency laws, step-time laws, the simulated world, fits."""
