"""The site of `make docs` has every page, no dead link and no external resource."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from posixpath import dirname, join, normpath

import pytest

from tests.support.page_commands import PAGES as DOCUMENTS
from tests.support.paths import DEPLOY, ROOT
from webhook import __version__
from webhook.core import documentation

pytestmark = pytest.mark.xdist_group("site")  # so that it is built once
PAGES = {
    "index.html" if path == ROOT / "README.md" else str(path.relative_to(ROOT).with_suffix(".html"))
    for path in DOCUMENTS
}


def build(config, folder, **environment):
    """Return the output of the build, which is empty on success."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-f", config, "-d", folder],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"} | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


class Page(HTMLParser):
    """Links, resources and anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.anchors, self.navigation = set(), set(), {""}, set()
        self.ids = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found.get("id", ""), found.get("name", "")}
        self.ids += [found["id"]] if "id" in found else []
        (self.links if tag == "a" else self.loads).update(
            found[name] for name in ("href", "src", "srcset", "data") if name in found
        )
        if "md-nav__link" in found.get("class", "").split() and "href" in found:
            self.navigation.add(found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of the site, and its pages keyed by relative path."""
    folder = tmp_path_factory.mktemp("site")
    assert build(DEPLOY / "mkdocs.yml", folder, REPOSITORY="") == []
    return folder, {
        str(path.relative_to(folder)): Page(path.read_text()) for path in folder.rglob("*.html")
    }


def test_every_document_is_in_the_navigation(site):
    _, pages = site
    assert {
        link.partition("#")[0] or "index.html" for link in pages["index.html"].navigation
    } == PAGES


def test_nothing_is_loaded_from_elsewhere(site):
    folder, pages = site
    loads = {load for page in pages.values() for load in page.loads}
    assert "assets/images/favicon.png" in loads
    assert [load for load in loads if "//" in load] == []
    for style in folder.rglob("*.css"):
        assert not re.search(r"@import|url\(.?(https?:|//)", style.read_text()), style
    for path in folder.rglob("*.html"):
        assert 'class="mermaid' not in path.read_text(), f"{path}: the theme loads what draws that"


def test_every_link_of_every_page_leads_somewhere(site):
    """This includes links to source files and links that the theme adds."""
    folder, pages = site
    assert "../source/policies/default.yaml.html" in pages["policies/README.html"].links
    dead = []
    for path, page in pages.items():
        for link in page.links | page.loads:
            target, _, anchor = link.removeprefix("/").partition("#")
            target = normpath(join(dirname(path), target)) if target else path
            if target in pages:
                alive = anchor in pages[target].anchors
            else:
                alive = "://" in link or (folder / target).is_file()
            if not alive:
                dead.append((path, link))
    assert dead == []


@pytest.mark.parametrize("page", [*documentation.Page])
def test_a_page_is_where_messages_and_alerts_lead(page, site):
    _, pages = site
    path, _, anchor = page.url("{page}.html").partition("#")
    assert anchor in pages[path].anchors


@pytest.mark.parametrize("path", ["deploy/values.html", "policies/fields.html"])
def test_no_two_rows_and_headings_of_a_reference_share_an_anchor(site, path):
    _, pages = site
    assert len(pages[path].ids) > 60
    assert len({*pages[path].ids}) == len(pages[path].ids)


def test_the_search_finds_documents_and_no_source(site):
    folder, _ = site
    index = json.loads((folder / "search" / "search_index.json").read_text())
    found = {entry["location"]: entry["text"] for entry in index["docs"]}
    assert {place.partition("#")[0] or "index.html" for place in found} == PAGES
    assert (ROOT / "SECURITY.md").read_text().splitlines()[2] in found["SECURITY.html"]


HOME = r"""# Home

[A file](deploy/mkdocs.yml), [a folder](deploy), [another page](deploy/page.md#a-head)

1. One

   and more of it
2. Two
   - within the second

| in a table |
| --- |
| `a \| b` |
"""
READ = [
    f"<title>vramwarden {__version__}</title>",
    '<a href="https://git.example" title="Go to repository" class="md-source">',
    '<a href="https://git.example/edit/main/README.md" title="Edit this page"',
    '<a href="https://git.example/blob/main/deploy/mkdocs.yml">A file</a>',
    '<a href="https://git.example/blob/main/deploy">a folder</a>',
    '<a href="deploy/page.html#a-head">another page</a>',
    "<p>and more of it</p></li><li><p>Two</p><ul><li>within the second</li></ul></li></ol>",
    "<td><code>a | b</code></td>",
]
BROKEN = """# Page

## A head

[Gone](gone.md), [a folder that is gone](gone), [a head](#none), [of a page](../README.md#none)
"""


SAID = """\
Aborted with 6 warnings in strict mode!
The following pages exist in the docs directory, but are not included in the "nav" configuration:
  - deploy/outside.md
A reference to 'deploy/none.md' is included in the 'nav' configuration, which is not found in the \
documentation files.
Doc file 'deploy/page.md' contains a link 'gone.md', but the target 'deploy/gone.md' is not found \
among documentation files.
Doc file 'deploy/page.md' contains an unrecognized relative link 'gone', it was left as is.
Doc file 'deploy/page.md' contains a link '#none', but there is no such anchor on this page.
Doc file 'deploy/page.md' contains a link '../README.md#none', but the doc 'README.md' does not \
contain an anchor '#none'.
""".splitlines()


def test_a_page_with_dead_links_or_outside_of_the_navigation_fails_by_name(tmp_path):
    """Lists and tables mean the same as on GitHub, to which pages link."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "deploy" / "site").mkdir(parents=True)
    (tmp_path / "README.md").write_text(HOME)
    (tmp_path / "deploy" / "page.md").write_text(BROKEN)
    (tmp_path / "deploy" / "outside.md").write_text("# Outside\n")
    settings = {
        "INHERIT": str(DEPLOY / "mkdocs.yml"),
        "hooks": [str(DEPLOY / "pages.py")],
        "nav": ["README.md", "deploy/page.md", "deploy/none.md"],
    }
    (tmp_path / "deploy" / "mkdocs.yml").write_text(json.dumps(settings))
    said = build(
        tmp_path / "deploy" / "mkdocs.yml",
        tmp_path / "dist",
        REPOSITORY="https://git.example/blob/main",
    )
    assert [line.removeprefix("WARNING -  ") for line in said if line] == SAID
    home = (tmp_path / "dist" / "index.html").read_text()
    for part in READ:
        assert part in re.sub(r"\n\s*", "", home), part
