"""What a sandbox is made of: a program of its own that confines, runs and watches another one, started by `sandbox.py`.

It starts for every answer that is judged, so nothing here imports more than the standard library.
"""
