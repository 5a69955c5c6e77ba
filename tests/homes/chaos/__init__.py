"""Random faults of the processes that homes depend on: real processes, simulated Spark."""
