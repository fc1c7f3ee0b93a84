"""Sites that did not answer: all learners tell of them in one way."""

import warnings
from collections.abc import Mapping

from kernfed.errors import MissingSites


def warn_missing(missing: Mapping[str, str], how: str, *, stacklevel: int) -> None:
    """Warn of the sites in ``missing`` (site: reason), if any, and say ``how`` the work went on without them."""
    if not missing:
        return
    listed = "; ".join(f"{site!r}: {reason}" for site, reason in list(missing.items())[:10])
    more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
    warnings.warn(f"{len(missing)} site(s) missing, {how}: {listed}{more}", MissingSites, stacklevel=stacklevel + 1)
