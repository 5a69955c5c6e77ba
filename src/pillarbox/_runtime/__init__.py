"""The two runtimes. They differ only in how buffers get from one level to the next."""
