"""Literal transcriptions of the equations, slow on purpose."""
