"""Published tables, run again: one file per table, found by ``kernfed_papers.runner.list_experiments``."""
