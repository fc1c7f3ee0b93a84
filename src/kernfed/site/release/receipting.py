"""What receipts say of releases: the noisy rows of forgotten ones are deleted, and stay released and paid."""

from kernfed.files import Record, content_digest
from kernfed.site.receipts import Kept, ReceiptBook
from kernfed.site.release.kept import FOLDER


def describe(name: str, record: Record) -> Kept:
    """A release: rows by themselves, or all together. The id of a forgotten row may be in it, of a blank one."""
    return Kept(name, 0, content_digest(dict(record.values), record.arrays))


BOOK = ReceiptBook(FOLDER, describe)
