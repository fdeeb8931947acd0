"""Source as HTML: a few token classes, one string for each line."""

from __future__ import annotations

from html import escape

from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, String, _TokenType

# The first that a token is in names its class; most tokens (names, signs) have none, which keeps the page small.
_CLASSES: dict[_TokenType, str] = {
    Comment.Preproc: "k",
    Comment: "c",
    Keyword: "k",
    Number: "m",
    String: "s",
    Name.Function: "f",
    Name.Builtin: "f",
}


def highlighted(text: str, language: str) -> list[str]:
    """HTML of every line of a text.

    >>> highlighted("return 1 < 2", "python")
    ['<i class=k>return</i> <i class=m>1</i> &lt; <i class=m>2</i>']
    """
    if language == "text":
        return [escape(line, quote=False) for line in text.split("\n")]
    lines, last = [""], ""
    for kind, value in get_lexer_by_name(language, stripnl=False, ensurenl=False).get_tokens(text):
        name = next((css for token, css in _CLASSES.items() if kind in token), "")
        for n, part in enumerate(value.split("\n")):
            if n:
                lines.append("")
                last = ""
            shown = escape(part, quote=False)
            if name and name == last:
                lines[-1] = lines[-1].removesuffix("</i>") + f"{shown}</i>"
            else:
                lines[-1] += f"<i class={name}>{shown}</i>" if name and part else shown
            last = name if part else last
    return lines
