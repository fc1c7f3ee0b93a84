"""What a learner's sum with noise in shares would promise, before anybody is asked."""

from typing import Any

from kernfed.federation.summing.released import honest_sites, promised
from kernfed.privacy.moments import RecordMoments
from kernfed.privacy.shared import SharedMoments, SharedRidge, SharedSum
from kernfed.secure.committee.setting import Committee, read_setting


def promised_line(learner: Any, sites: int) -> str:
    """The guarantee of a record, where so many sites take part and all must report."""
    setting = read_setting(learner.sum) or Committee()
    honest = honest_sites(setting, sites, None)
    shared: SharedSum
    if isinstance(learner.privacy, RecordMoments):
        shared = SharedMoments.of(learner.privacy, ("any",), honest)
    else:
        shared = SharedRidge.of(learner.privacy, 1, 1, honest)
    public = getattr(learner, "classes", None) is None and getattr(learner, "task", "classify") == "classify"
    return f"  {promised(shared, public_labels=public)[1]}"
