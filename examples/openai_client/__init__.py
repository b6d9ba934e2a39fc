"""Sums once more, asked by a plain program that knows nothing of PSRL."""
