# ruff: noqa: INP001 - a hook of mkdocs: it is in no package and no wheel
"""Pages of the site that `make docs` builds.

Every Markdown file of the repository becomes a page at the same path, so links between them work.
A link to another file leads to a page with its content, a link to a folder to a page that lists it.
If REPOSITORY is set (https://git.example/vramwarden/blob/main), both lead to the repository, and
each page has a link to edit it there.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
from pathlib import Path
from posixpath import basename, dirname, join, normpath, relpath
from typing import Final
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.blockprocessors import BlockProcessor, build_block_parser
from markdown.extensions import Extension
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments.lexers import find_lexer_class_for_filename

from webhook import __version__

_LINK: Final = re.compile(r"(?<=\]\()[^)#\s]+")
_ROW: Final = re.compile(r"^\|.*", re.MULTILINE)
_CODE: Final = re.compile(r"`[^`]+`")
_NEXT_ITEM: Final = re.compile(r"( .*?)\n((?:-|\d+\.) .*)", re.DOTALL)
_PICTURES: Final = (".svg", ".png")
_BLOB: Final = re.compile("(?:/-)?/blob/")
_HEAD: Final = "---\nsearch: {exclude: true}\nhide: [navigation, toc]\n---\n\n"


class _Lists(Extension):
    """Lists as on GitHub: continuation lines are indented by two or three columns, not four."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - Markdown's name
        md.tab_length = 2
        md.parser = build_block_parser(md)
        md.parser.blockprocessors.register(_NextItem(md.parser), "next-item", 95)


class _NextItem(BlockProcessor):
    """A list item directly after a paragraph of another item, without an empty line."""

    def test(self, parent: Element, block: str) -> bool:  # noqa: ARG002 - Markdown's signature
        return bool(_NEXT_ITEM.match(block))

    def run(self, parent: Element, blocks: list[str]) -> None:  # noqa: ARG002 - as above
        blocks[:1] = _NEXT_ITEM.match(blocks[0]).groups()


def on_config(config: MkDocsConfig) -> None:
    """Configure lists, logging, the title and the repository.

    Lists come first, because other extensions add to the parser. Logging is limited to warnings
    here, because with `--quiet` mkdocs ignores warnings even in strict mode.
    """
    logging.getLogger("mkdocs").setLevel(logging.WARNING)
    config.markdown_extensions.insert(0, _Lists())
    config.site_name += f" {__version__}"
    if repository := os.environ.get("REPOSITORY"):
        config.repo_url, config.repo_name = _BLOB.split(repository)[0], "Source"


def on_pre_page(page: Page, config: MkDocsConfig, files: Files) -> Page:  # noqa: ARG001 - its names
    """Link a page to its editor in the repository. GitHub and GitLab replace `blob` by `edit`."""
    if repository := os.environ.get("REPOSITORY"):
        page.edit_url = f"{repository.replace('/blob/', '/edit/', 1)}/{page.file.src_uri}"
    return page


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001 - its names
    """Remove the attribute that makes the theme request star counts from GitHub and GitLab."""
    return output.replace(' data-md-component="source"', "")


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add all pages and pictures, and the files and folders that pages link to."""
    root = Path(config.config_file_path).resolve().parents[1]
    paths = _paths(root)
    linked: set[str] = set()

    def site_link(link: str, folder: str) -> str:
        """Convert a link in a page of `folder` to a link of the site."""
        path = normpath(join(folder, link))
        if path.endswith((".md", *_PICTURES)) or not (path in paths or _entries(path, paths)):
            return link  # a page, a picture or a dead link, which mkdocs reports
        if repository := os.environ.get("REPOSITORY"):
            return f"{repository}/{path}"
        if f"{path}/README.md" in paths:
            return f"{link}/README.md"
        linked.add(path)
        return relpath(_page(path, paths), folder)

    def add(path: str, text: str) -> None:
        text = _LINK.sub(lambda link: site_link(link[0], dirname(path)), text)
        page = File.generated(config, path, content=text)
        if dirname(path):  # otherwise mkdocs turns a README.md into index.html
            page.dest_uri = f"{path.removesuffix('.md')}.html"
        files.append(page)

    for path in paths:
        if path.endswith(".md"):
            add(path, _ROW.sub(_unescape_pipes, (root / path).read_text()))
        elif path.endswith(_PICTURES):
            files.append(File.generated(config, path, abs_src_path=str(root / path)))
    for folder in sorted(linked.difference(paths)):
        content = _folder_page(folder, paths)
        files.append(File.generated(config, _page(folder, paths), content=content))
    for path in sorted(linked.intersection(paths)):
        text = _file_page(path, (root / path).read_text(errors="replace"))
        files.append(File.generated(config, _page(path, paths), content=text))


def _paths(root: Path) -> list[str]:
    """Return the sorted paths of files that git does not ignore, without hidden ones."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)  # noqa: S603 - git
    names = sorted({*done.stdout.split("\0")})
    return [name for name in names if name[:1] != "." and (root / name).is_file()]


def _unescape_pipes(row: re.Match[str]) -> str:
    r"""Return a table row with `|` for `\|` in code, since only GitHub needs the backslash."""
    return _CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0])


def _entries(folder: str, paths: list[str]) -> list[str]:
    """Return the names of a folder's files and subfolders; subfolders end with a slash."""
    names = [path.removeprefix(f"{folder}/") for path in paths if path.startswith(f"{folder}/")]
    return [*dict.fromkeys(name.partition("/")[0] + "/" * ("/" in name) for name in names)]


def _page(path: str, paths: list[str]) -> str:
    """Return the path of the page that shows a file or lists a folder."""
    return f"source/{path}.md" if path in paths else f"source/{path}/README.md"


def _folder_page(folder: str, paths: list[str]) -> str:
    """Return the page of a folder. Names are not links, since each link would add a page."""
    rows = [f"- `{name}`" for name in _entries(folder, paths)]
    return "\n".join([f"{_HEAD}# `{folder}/`\n", *rows])


def _file_page(path: str, text: str) -> str:
    lexer = find_lexer_class_for_filename(basename(path))
    fence = "`" * (1 + max(map(len, re.findall("`{2,}", text)), default=2))
    return f"{_HEAD}# `{path}`\n\n{fence}{lexer.aliases[0] if lexer else ''}\n{text}\n{fence}\n"
