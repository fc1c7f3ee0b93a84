"""Sums over rows, each declared once: what is summed, and how far one record can move it."""
