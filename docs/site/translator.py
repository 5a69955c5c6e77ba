"""HTML with fewer elements: the time that a browser needs to show a page grows with their number."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from docutils.nodes import Element, Text, image
from pygments.formatters import HtmlFormatter
from pygments.token import Token
from sphinx.highlighting import PygmentsBridge
from sphinx.util.images import get_image_size
from sphinx.util.logging import getLogger
from sphinx.writers.html5 import HTML5Translator

# A browser shows a page of so many elements within 200 ms.
MAX_ELEMENTS = 4000
# Where a browser may break a line within a word of code: after the hyphens of "--py-files".
_BREAKS = re.compile(r"[-/|?!}]\w|[^\x00-\x7f]")
# Both styles show these in the color of the text.
_PLAIN = {Token.Name, Token.Punctuation, Token.Text.Whitespace}


class Translator(HTML5Translator):
    """Sphinx's own, without elements that the theme's style sheets do not name."""

    def visit_Text(self, node: Text) -> None:
        """Put a word of code in an element of its own only if a line could break in it."""
        if not self.protect_literal_text:
            super().visit_Text(node)
            return
        for word in self.words_and_spaces.findall(self.encode(node.astext())):
            if word.isspace():
                # The last of several spaces is one at which a line may break.
                self.body.append(word if word in (" ", "\n") else "&#160;" * (len(word) - 1) + " ")
            else:
                self.body.append(f'<span class="pre">{word}</span>' if _BREAKS.search(word) else word)

    def visit_image(self, node: image) -> None:
        """Have pictures loaded when they are about to be seen, into room that is kept for them."""
        size = get_image_size(Path(self.builder.srcdir, node["uri"]))
        if size is not None and "width" not in node:
            node["width"], node["height"] = map(str, size)
        node["loading"] = "lazy"
        super().visit_image(node)

    def visit_desc_sig_element(self, node: Element) -> None:
        """Names, brackets and operators of a signature are text."""

    def depart_desc_sig_element(self, node: Element) -> None:
        """Nothing was opened."""


class Formatter(HtmlFormatter[str]):
    """Pygments' own, without elements that change no color."""

    def format(self, tokensource: Iterable[tuple[Any, str]], outfile: IO[str]) -> None:
        plain = ((Token.Text if kind in _PLAIN else kind, text) for kind, text in tokensource)
        super().format(plain, outfile)


def _count_elements(app: Any, error: Exception | None) -> None:
    """Warn of pages that are too large; ``-W`` makes that an error."""
    for path in Path(app.outdir).rglob("*.html") if error is None else ():
        elements = len(re.findall(r"<[a-z]", path.read_text()))
        if elements > MAX_ELEMENTS:
            name = path.relative_to(app.outdir)
            getLogger(__name__).warning(
                f"{name} has {elements} elements, more than {MAX_ELEMENTS}, and takes long to load: divide the page"
            )


def setup(app: Any) -> None:
    """Have Sphinx write HTML and highlighted code with these."""
    app.set_translator("html", Translator)
    app.connect("build-finished", _count_elements)
    PygmentsBridge.html_formatter = Formatter
