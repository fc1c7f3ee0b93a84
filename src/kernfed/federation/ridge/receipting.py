"""What receipts say of ridge regressions: their factors are deleted with a row, and made again of the others."""

from kernfed.files import Record, content_digest
from kernfed.site.receipts import Kept, ReceiptBook

_FOLDER = "ridge"


def describe(name: str, record: Record) -> Kept:
    """A factor, which is kept only to be at hand: it is made again whenever rows have changed."""
    return Kept(name, 0, content_digest(dict(record.values), record.arrays))


BOOK = ReceiptBook(_FOLDER, describe, elsewhere=("regularization, bandwidth and weights of classes of a head",))
