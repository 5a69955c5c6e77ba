"""The tools of pillarbox: dashboard, exporters, doctor, recording and replay, and the command line.

Users call them through ``pillarbox``; nothing here is public. The tools import the core, never the reverse. Start with
`entry.py`, which contains all functions that the core calls. Weak spot: the tools use the core's private modules, so
both packages must have the same version.
"""
