"""What the coordinator does: add masked vectors as they come, and take away the sums of their masks.

It holds one vector, whatever the number of sites, and of every site a few hundred bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from kernfed.errors import InputError, ProtocolError
from kernfed.secure.committee.contribution import Contribution
from kernfed.secure.committee.fixed import Words
from kernfed.secure.committee.member import MaskSums
from kernfed.secure.committee.reports import Bytes, Report, Reports
from kernfed.secure.committee.terms import ANSWERS, RunTerms


@dataclass
class MaskedTotal:
    """The sum of masked vectors so far, and who has reported."""

    terms: RunTerms
    total: Words = field(init=False)
    _reports: dict[str, Report] = field(init=False, default_factory=dict)
    _boxes: dict[str, Bytes] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.total = np.zeros(self.terms.layout.size, dtype=np.uint64)

    def add(self, site: str, contribution: Contribution) -> None:
        """Take one contribution; a second one of the same site, or one that it did not sign, is refused."""
        if site in self._reports:
            raise InputError(f"site {site!r} has reported in this run already")
        report = contribution.report()
        report.check(self.terms, site)
        self.total += contribution.masked
        self._reports[site], self._boxes[site] = report, contribution.boxes.copy()

    @property
    def reports(self) -> Reports:
        """The set so far."""
        return Reports(self.terms, dict(self._reports))

    def boxes_for(self, member: str) -> Bytes:
        """The boxes (n, bytes) for a member, in the order of the sites."""
        place = self.terms.place(member)
        return np.stack([self._boxes[site][place] for site in self.reports.sites])

    def unmask(self, answers: Mapping[str, MaskSums]) -> Words:
        """The sum of the vectors (d,), from the members' answers.

        Two answers hold all streams. Sums of a stream that differ stop the run: somebody is wrong, and nobody here can
        say who. Where a member may be corrupt every sum must be told by two members.
        """
        if len(answers) < ANSWERS:
            raise ProtocolError(f"the sums of masks are needed from {ANSWERS} members at least, got {len(answers)}")
        result = self.total.copy()
        for index in range(len(self.terms.committee)):
            result -= self._agreed(index, answers)
        return result

    def _agreed(self, index: int, answers: Mapping[str, MaskSums]) -> Words:
        """The sum of one stream, as all who hold it tell it."""
        told = {
            member: answer.digests[index].tobytes()
            for member, answer in answers.items()
            if index in self.terms.held(member)
        }
        if len(set(told.values())) > 1:
            raise ProtocolError(
                f"members {', '.join(sorted(told))} tell different sums of one mask: one of them is wrong, and the run "
                "ends without a sum"
            )
        given = [answer.sums[index] for answer in answers.values() if index in answer.sums]
        if not given or (self.terms.corrupt and len(told) < ANSWERS):
            raise ProtocolError(f"too few members answered: the sum of mask {index + 1} was told by {len(told)} only")
        return given[0]
