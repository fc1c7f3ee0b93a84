"""The setting of learners that can add up what sites answer, for commands and jobs."""

from kernfed.secure.committee.setting import SECURE
from kernfed.site.fields import Setting

SUM = Setting(
    "sum",
    "secure: sites add up under masks, and nobody sees a part; noise of --privacy is added once for all of them.",
    choices=(SECURE,),
)
