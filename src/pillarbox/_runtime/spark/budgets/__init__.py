"""The driver's ledger: the accounts of its queries' budgets.

Start with `server.py`. `spent.py` writes the charges of ceilings into checkpoints. Weak spot: while the driver stands
still, no request begins.
"""
