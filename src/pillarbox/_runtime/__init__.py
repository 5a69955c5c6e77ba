"""The two runtimes, Spark and this process. They run the same tasks, and differ in how tasks exchange buffers."""
