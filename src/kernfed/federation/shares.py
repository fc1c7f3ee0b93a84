"""How much one site may weigh: nobody can count its rows, so what it claims is held against what the others claim."""

from collections.abc import Mapping

import numpy as np

from kernfed.base.checks import check_number

#: The largest share of all rows that one of three and more sites may have, unless told otherwise.
MAX_SHARE = 0.9
#: So many times the median over sites is no difference between data any more: a hundred times the unit, squared.
_FAR = 1e4


def outsized(rows: Mapping[str, float], max_share: float = MAX_SHARE) -> dict[str, str]:
    """Why each site that claims more than ``max_share`` of all rows is not believed; with one or two sites nobody is.

    A site of that share makes the result alone: what the others have is as good as nothing.

    >>> outsized({"a": 10, "b": 20, "c": 970})["c"]
    "site 'c' says that it has 970 of 1,000 rows; if that is true, give a max_share above 0.9"
    """
    check_number(max_share, "max_share", above=0, at_most=1)
    having = {site: count for site, count in rows.items() if count > 0}
    total = sum(having.values())
    if len(having) < 3:
        return {}
    return {
        site: f"site {site!r} says that it has {count:,.0f} of {total:,.0f} rows; "
        f"if that is true, give a max_share above {max_share:g}"
        for site, count in having.items()
        if count > max_share * total
    }


def far_above(values: Mapping[str, float], name: str) -> dict[str, str]:
    """Why each site whose ``name`` is far above the median over three and more sites is not believed.

    For numbers that have no public bound. What is below 10,000 is never far above.
    """
    if len(values) < 3:
        return {}
    limit = _FAR * max(1.0, float(np.median(list(values.values()))))
    return {
        site: f"site {site!r} has {value:.3g} for the {name}, and the median over sites is {limit / _FAR:.3g}"
        for site, value in values.items()
        if not value <= limit
    }
