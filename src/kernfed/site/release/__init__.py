"""What sites release under differential privacy: allowed, charged, kept."""

from kernfed.site.protocol.task import Method

METHOD = Method(
    name="release",
    forgets=("kernfed.site.release.kept:drop_releases",),
    receipts="kernfed.site.release.kept:BOOK",
)
