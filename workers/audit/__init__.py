"""The audit: the promises L1, L2, L5, L6, L8, L9 and L10, proved from what a run left in the store.

`audit.py` is the entry; every other file holds the rules of one group of promises. Nothing here writes.
"""
