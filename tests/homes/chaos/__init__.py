"""Random faults of home processes, and of the processes that start and use them. Only Spark is simulated."""
