"""Random faults of the processes that homes depend on. The processes are real; Spark is simulated."""
