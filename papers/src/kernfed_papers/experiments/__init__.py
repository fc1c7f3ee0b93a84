"""Published tables, run again: one file per table, found by ``runner.list_experiments``."""
