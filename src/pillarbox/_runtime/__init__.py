"""Two runtimes, Spark and this process, which differ in how tasks exchange buffers."""
