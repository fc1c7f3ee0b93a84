"""Numbers printed in KME."""

from collections.abc import Mapping

from kernfed.experiments.published.table import PublishedTable

TABLES: Mapping[int, PublishedTable] = {}
