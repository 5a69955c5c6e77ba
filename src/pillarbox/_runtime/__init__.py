"""The two runtimes: Spark, and this process. They differ only in how buffers get from one level to the next."""
