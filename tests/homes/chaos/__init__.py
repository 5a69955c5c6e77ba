"""Random faults of the processes that homes depend on. These processes are real; Spark is simulated."""
