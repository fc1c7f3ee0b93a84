"""Attacks on files, messages, writes and learners, as a program: ``make attack``, or ``python -m attacks``.

Everything is tried on purpose and from a seed; a table says what came of it. No part of the package.
"""
