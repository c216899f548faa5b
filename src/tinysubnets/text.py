"""Text that somebody else chose (names, labels, reasons, settings of files), shown harmlessly.

One function for each place that text is shown in. HTML has none here: pages are made by templates
that escape everything, and drawings by the one function of `report.drawing` that makes markup; both
write out first what a terminal would obey.
"""

from __future__ import annotations

import json
import re
import unicodedata

# What a terminal obeys instead of showing it: controls, marks that turn the direction of writing,
# half characters, line and paragraph separators. Joiners stay: scripts and emoji need them.
_KINDS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"
# Letters and a symbol without ink: fillers of Hangul, the empty pattern of Braille.
_BLANKS = "\u115f\u1160\u3164\uffa0\u2800"
_IN_MARKDOWN = re.compile(r"[\\`*\[\]<>|~$&]|(?<!\w)_|_(?!\w)")
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
_IN_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": r"$-$",
    "–": "--",
    "≥": r"$\geq$",
    "<": r"$<$",
    ">": r"$>$",
    "Υ": r"$\Upsilon$",
    "Θ": r"$\Theta$",
    "|": r"$|$",
    "→": r"$\to$",
    "·": r"$\cdot$",
    "…": r"\dots{}",
}


def for_terminal(text: str, keep: str = "") -> str:
    """The text with everything that a terminal would obey written out, as JSON writes it.

    - `keep`: characters that stay as they are, such as line ends in a text of several lines.

    >>> print(for_terminal("cat\\x1b[2J\\n"))
    cat\\u001b[2J\\n
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or _is_shown(c) else json.dumps(c)[1:-1] for c in text)


def for_markdown(text: str) -> str:
    """The text as it is, in one line of Markdown: no markup, no HTML, no end of a table's cell."""
    shown = for_terminal(text)
    return _IN_MARKDOWN.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), shown)


def for_latex(text: str) -> str:
    """The text as it is, in LaTeX."""
    return "".join(_IN_LATEX.get(c, c) for c in for_terminal(text))


def is_seen(text: str) -> bool:
    """Whether a reader sees every character of a text: none is left out, some is no space.

    Joiners count as seen: they change the shape of what is beside them.

    >>> is_seen("task 0"), is_seen(" "), is_seen("task 0\\u200b")
    (True, False, False)
    """
    marks = (c for c in text if c not in _BLANKS and c not in _JOINERS)
    return for_terminal(text) == text and any(unicodedata.category(c)[0] in "LNPS" for c in marks)


def _is_shown(character: str) -> bool:
    return unicodedata.category(character) not in _KINDS or character in _JOINERS
