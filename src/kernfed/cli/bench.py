"""``kernfed bench`` where the package that brings it is not installed."""

from kernfed.errors import InputError

EXAMPLE = "Example: kernfed bench gikm-table-1 --seed 0"


def bench() -> None:
    """Run a published table again, print it beside the published numbers, and keep the result; or list the tables."""
    raise InputError(
        "the published tables are a package of their own, kernfed-papers, which is not installed; in a clone of the "
        "repository: pip install --editable papers"
    )


#: Gives way to the command of that name that another package declares.
bench.stands_in = True  # type: ignore[attr-defined]
