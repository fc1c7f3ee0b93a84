"""The papers that kernfed joins: their tables run again, the numbers they print, and what they are compared with."""
