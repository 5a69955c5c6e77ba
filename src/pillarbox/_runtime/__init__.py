"""The two runtimes: one on Spark, one in this process. They run the same tasks and differ only in how these exchange
buffers.
"""
