"""Federated learning in one round, without gradients."""

from kernfed._version import __version__

__all__ = ["__version__"]
