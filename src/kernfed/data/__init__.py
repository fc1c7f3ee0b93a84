"""Data: tables from files, named data sets, and ways to spread rows over sites."""

from kernfed.base.checks import check_rows
from kernfed.data.catalog import BROUGHT
from kernfed.data.columns import RawTable, raw_table, read_raw_table
from kernfed.data.datasets import (
    Dataset,
    DatasetInfo,
    Domains,
    SyntheticTask,
    data_folder,
    describe_file,
    fednewton_synthetic,
    folder_words,
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
from kernfed.data.preparation import Preparation
from kernfed.data.preparation_choice import Rules
from kernfed.data.read import Arrays, open_npz, read_table, write_table
from kernfed.data.table import Table, check_classes
from kernfed.errors import DataError, DatasetNotFoundError, IdentifierAmongFeatures

__all__ = [
    "BROUGHT",
    "Arrays",
    "DataError",
    "Dataset",
    "DatasetInfo",
    "DatasetNotFoundError",
    "Domains",
    "IdentifierAmongFeatures",
    "Preparation",
    "RawTable",
    "Rules",
    "SyntheticTask",
    "Table",
    "check_classes",
    "check_rows",
    "data_folder",
    "describe_file",
    "fednewton_synthetic",
    "folder_words",
    "holdout",
    "list_datasets",
    "load_dataset",
    "load_domains",
    "long_tailed",
    "open_npz",
    "partition_by_column",
    "partition_by_groups",
    "partition_dirichlet",
    "partition_label_skew",
    "partition_one_class",
    "partition_quantity",
    "raw_table",
    "read_raw_table",
    "read_table",
    "scale_tanh",
    "scale_times10",
    "scale_unit",
    "write_table",
]
