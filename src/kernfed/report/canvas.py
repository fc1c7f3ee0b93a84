"""The canvas of every drawing, and its SVG for a page: colours become variables, ids unique, text stays text."""

import re
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

#: Roles of curves, in turn.
SERIES = tuple(f"series-{number}" for number in range(1, 9))
_ROLES = ("ink", "muted", "rule", "heat", "paper", "on-low", "on-high", *SERIES)
_STAND_INS = {role: f"#0{place // 10}0{place % 10}fe" for place, role in enumerate(_ROLES)}
_LONGEST = 22
#: A rectangle as matplotlib writes it, corner by corner.
_BOX = re.compile(r"M (\S+) (\S+) L (\S+) \2 L \3 (\S+) L \1 \4 (?:L \1 \2 )?z ?")


def plain_text(value: object) -> str:
    """Text on one line without what is invisible or turns the direction of writing, which could hide what it says."""
    text = " ".join(str(value).split())
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


def shortened(value: object, longest: int = _LONGEST) -> str:
    """Text of at most ``longest`` signs; the middle gives way, since names differ at their ends."""
    text = plain_text(value)
    if len(text) <= longest:
        return text
    head = (longest - 1) // 2
    return f"{text[:head]}…{text[head + len(text) - longest + 1 :]}"


def inline(svg: str, title: str, words: str, name: str) -> str:
    """The element alone, with variables for stand-ins, the page's font, unique ids and the text alternative.

    Only tags are changed: what a name says is text, whatever it looks like.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<!--.*?-->|<(metadata|style|title)\b.*?</\1>", "", body, flags=re.DOTALL)
    tags = "".join(re.findall(r"<[^>]*>", body))
    used = set(re.findall(r"(?:url\(|href=\")#([\w-]+)", tags))
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', tags)[0]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{float(width):.0f}" '
        f'height="{float(height):.0f}" role="img" aria-labelledby="{name}-title {name}-words">'
        f'<title id="{name}-title">{_escaped(title)}</title>'
        f'<desc id="{name}-words">{_escaped(words)}</desc>'
    )
    body = re.sub(r"<[^>]*>", lambda tag: _page_tag(tag[0], name, used), body[body.index(">") + 1 :])
    return re.sub(r"\n\s*", "\n", head + body).strip()


def _page_tag(tag: str, name: str, used: set[str]) -> str:
    """A tag as the page needs it: on one line, coordinates to a hundredth of a pixel, ids that begin with ``name``."""
    for role, stand_in in _STAND_INS.items():
        tag = tag.replace(stand_in, f"var(--{role})")
    tag = re.sub(r"font: (?:\w+ )*([\d.]+)px [^;\"]*", r"font-size: \1px", tag)
    tag = re.sub(r"font-family: [^;\"]*;?", "", tag)
    tag = re.sub(r' id="([\w.-]+)"', lambda match: f' id="{name}-{match[1]}"' if match[1] in used else "", tag)
    tag = re.sub(r"url\(#", f"url(#{name}-", tag)
    tag = re.sub(r"(?:xlink:)?href=\"#", f'href="#{name}-', tag)
    tag = re.sub(r"-?\d+\.\d{3,}", lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), tag)
    return _BOX.sub(r"M\1 \2H\3V\4H\1z", " ".join(tag.split()))


def _escaped(text: str) -> str:
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(sign, safe)
    return plain_text(text)


def color(role: str) -> str:
    """The colour to draw with, for what the page will colour as ``role``."""
    return _STAND_INS[role]


#: Every role of a curve has another marker, so that colour is never the only difference.
MARKERS = "osD^vPXh"
#: Design width in CSS pixels; a figure is shown at this width or less, a wide one may be scrolled. A page is PAGE wide.
WIDTH, PAGE = 400, 940
_INCH, TEXT = 72.0, 11.5
#: About how wide a sign is, in pixels, and the gap between the name of an axis and its labels.
SIGN, PAD = 6.4, 8.0
STEPS = [1, 2, 2.5, 5, 10]
_LEGEND = 44
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": TEXT,
    "font.family": "DejaVu Sans",  # comes with matplotlib; wider than most, so that what fits here fits everywhere
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "axes.unicode_minus": False,
}


def empty_drawing(width: float, height: float) -> Drawing:
    """A drawing of this size in CSS pixels, without axes."""
    return Drawing(figsize=(width / _INCH, height / _INCH), dpi=_INCH, layout="constrained")


def canvas(width: float, height: float) -> tuple[Drawing, Axes]:
    """An empty drawing of this size in CSS pixels, and its axes."""
    drawing = empty_drawing(width, height)
    axes = drawing.add_subplot()
    set_up(axes)
    return drawing, axes


def set_up(axes: Axes) -> None:
    """Lines and labels in the colours of the page."""
    axes.spines[["top", "right"]].set_visible(False)
    for spine in axes.spines.values():
        spine.set_edgecolor(color("rule"))
    axes.tick_params(which="both", colors=color("muted"), labelcolor=color("muted"), length=3)


def legend_columns(names: Sequence[str], most: int) -> int:
    """How many names of a legend fit side by side, at most ``most``."""
    longest = max((len(shortened(name, _LEGEND)) for name in names), default=1)
    return max(1, min(most, int(56 / (longest + 6))))


def legend(drawing: Drawing, axes: Axes, most: int) -> None:
    """Names of what is drawn, below it, at most so many side by side."""
    handles, names = axes.get_legend_handles_labels()
    # Names are set on the texts: a legend leaves out what begins with an underscore.
    drawn = drawing.legend(
        handles,
        [str(place) for place in range(len(handles))],
        loc="outside lower center",
        ncols=legend_columns(names, most),
        frameon=False,
        fontsize=TEXT - 0.5,
    )
    for text, name in zip(drawn.get_texts(), names, strict=True):
        text.set_text(shortened(name, _LEGEND))
        text.set_color(color("ink"))
