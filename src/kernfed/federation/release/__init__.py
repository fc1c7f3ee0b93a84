"""What sites release under differential privacy: allowed, charged, kept."""

from kernfed.federation.protocol.task import Method

METHOD = Method(
    name="release",
    forgets=("kernfed.federation.release.kept:drop_releases",),
    receipts="kernfed.federation.release.receipting:BOOK",
)
