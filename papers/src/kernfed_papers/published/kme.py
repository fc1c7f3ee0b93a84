"""Numbers printed in KME: one. Its results are Figures 1 to 3; its Tables 1 and 2 list settings."""

from collections.abc import Mapping

from kernfed_papers.published.table import PublishedTable

TABLES: Mapping[int, PublishedTable] = {}
#: Figure 1: variance within groups from which learning from one's group is worse than alone, read off by the authors.
TRANSITION = 0.5
