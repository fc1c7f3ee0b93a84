"""Numbers printed in KME: none. Its results are Figures 1 to 3, without a table and without a number in the text."""

from collections.abc import Mapping

from kernfed.experiments.published.table import PublishedTable

TABLES: Mapping[int, PublishedTable] = {}
