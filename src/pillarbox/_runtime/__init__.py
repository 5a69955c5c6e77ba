"""Two runtimes, Spark and this process, which run the same tasks and differ in how tasks exchange buffers."""
