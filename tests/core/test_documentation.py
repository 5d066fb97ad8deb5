"""References to pages in messages: by URL, or by path in the documentation."""

from __future__ import annotations

import pytest

from webhook.core.documentation import Page


@pytest.mark.parametrize(
    ("pattern", "page", "named"),
    [
        ("", Page.LAPTOP, "deploy/laptop.md in the documentation"),
        ("", Page.RUNTIME_CLASS, "deploy/nodes.md#runtimeclass in the documentation"),
        ("https://d.example/{page}.html", Page.LAPTOP, "https://d.example/deploy/laptop.html"),
        (
            "https://git.example/blob/main/{page}.md?plain=1",
            Page.RUNTIME_CLASS,
            "https://git.example/blob/main/deploy/nodes.md?plain=1#runtimeclass",
        ),
    ],
)
def test_a_page_is_named_by_its_url_or_its_place(pattern, page, named):
    assert page.url(pattern) == named
