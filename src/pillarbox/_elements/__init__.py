"""Stream elements (records, watermarks, barriers), the buffers that hold them, and a task's report.

Start with `elements.py`. Weak spot: an element's encoding is the wire format of the shuffle, without a version.
"""
