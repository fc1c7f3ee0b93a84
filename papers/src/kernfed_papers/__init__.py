"""The papers that kernfed joins: their tables run again, the numbers they print, and what they are compared with."""

#: In step with kernfed's; a test compares them.
__version__ = "0.3.0"
