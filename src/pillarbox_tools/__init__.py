"""The tools of pillarbox: what shows, exports, records and replays queries, and the command line.

Users reach them by the names of ``pillarbox`` and by the command ``pillarbox``; nothing here is public. Start with
`entry.py`, which has all that the core calls. The tools import the core, and the core nothing of them. Weak spot: they
use its private modules, so both packages have to be of one version.
"""
