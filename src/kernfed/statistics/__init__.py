"""Sums over rows, each declared once: what is summed, and how far one record can move it."""

from kernfed.statistics.bounds import BITS, check_scale, product, saturate
from kernfed.statistics.classes import CentredMoments, ClassCounts, ClassMeans, ClassMoments, JointMoments
from kernfed.statistics.columns import ColumnHistogram, ColumnMoments, ColumnTotals
from kernfed.statistics.features import MeanFeatures, RidgeSums, RidgeTotals
from kernfed.statistics.held_out import (
    LadderHistogram,
)
from kernfed.statistics.statistic import (
    LabelledRows,
    Part,
    Rows,
    Statistic,
    label_places,
    statistic_class,
    statistic_names,
    statistic_of,
)

__all__ = [
    "BITS",
    "CentredMoments",
    "ClassCounts",
    "ClassMeans",
    "ClassMoments",
    "ColumnHistogram",
    "ColumnMoments",
    "ColumnTotals",
    "JointMoments",
    "LabelledRows",
    "LadderHistogram",
    "MeanFeatures",
    "Part",
    "RidgeSums",
    "RidgeTotals",
    "Rows",
    "Statistic",
    "check_scale",
    "label_places",
    "product",
    "saturate",
    "statistic_class",
    "statistic_names",
    "statistic_of",
]
