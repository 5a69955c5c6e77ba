"""The two runtimes: they only differ in the way that buffers take from one level to the next."""
