"""The two runtimes: they only differ in who carries buffers from one level to the next."""
