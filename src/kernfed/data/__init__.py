"""Data: tables from files, named data sets, and ways to spread rows over sites."""

from kernfed.data.datasets import (
    Dataset,
    DatasetInfo,
    DatasetNotFoundError,
    Domains,
    data_folder,
    list_datasets,
    load_dataset,
    load_domains,
    scale_tanh,
    scale_times10,
    scale_unit,
)
from kernfed.data.partition import (
    holdout,
    long_tailed,
    partition_by_column,
    partition_by_groups,
    partition_dirichlet,
    partition_label_skew,
    partition_one_class,
    partition_quantity,
)
from kernfed.data.read import read_table
from kernfed.data.table import DataError, IdentifierAmongFeatures, Table, check_classes
from kernfed.data.write import write_table

__all__ = [
    "DataError",
    "Dataset",
    "DatasetInfo",
    "DatasetNotFoundError",
    "Domains",
    "IdentifierAmongFeatures",
    "Table",
    "check_classes",
    "data_folder",
    "holdout",
    "list_datasets",
    "load_dataset",
    "load_domains",
    "long_tailed",
    "partition_by_column",
    "partition_by_groups",
    "partition_dirichlet",
    "partition_label_skew",
    "partition_one_class",
    "partition_quantity",
    "read_table",
    "scale_tanh",
    "scale_times10",
    "scale_unit",
    "write_table",
]
