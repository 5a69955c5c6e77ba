"""The Spark runtime: a program as one streaming or batch DataFrame plan."""
