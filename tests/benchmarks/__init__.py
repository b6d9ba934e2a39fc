"""Overheads of the system, each as a ratio of two measurements of one run. `make bench` prints all of them."""
