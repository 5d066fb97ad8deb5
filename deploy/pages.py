# ruff: noqa: INP001 - a hook of mkdocs, and no package: it goes into no wheel
"""The pages of the site that `make docs` builds.

Every Markdown file of the repository is one, at its own path: links between them work as they are.
A link to another file leads to a page that shows it, one to a folder to a page that lists it.
Where REPOSITORY is set (https://git.example/vramwarden/blob/main), both lead there instead, and
each page links to its file there.
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
    """What belongs to an item of a list stands two or three columns in, as on GitHub, not four."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - its name there
        md.tab_length = 2
        md.parser = build_block_parser(md)
        md.parser.blockprocessors.register(_NextItem(md.parser), "next-item", 95)


class _NextItem(BlockProcessor):
    """The item after a paragraph of another item needs no empty line before it."""

    def test(self, parent: Element, block: str) -> bool:  # noqa: ARG002 - as the parser calls it
        return bool(_NEXT_ITEM.match(block))

    def run(self, parent: Element, blocks: list[str]) -> None:  # noqa: ARG002 - as above
        blocks[:1] = _NEXT_ITEM.match(blocks[0]).groups()


def on_config(config: MkDocsConfig) -> None:
    """Read lists as GitHub does, before the other extensions add to the parser; log warnings only.

    With its option --quiet mkdocs counts no warnings either, and so is not strict.
    The header shows the version and, if there is one, the repository.
    """
    logging.getLogger("mkdocs").setLevel(logging.WARNING)
    config.markdown_extensions.insert(0, _Lists())
    config.site_name += f" {__version__}"
    if repository := os.environ.get("REPOSITORY"):
        config.repo_url, config.repo_name = _BLOB.split(repository)[0], "Source"


def on_pre_page(page: Page, config: MkDocsConfig, files: Files) -> Page:  # noqa: ARG001 - its names
    """Link a page to its editor in the repository: GitHub and GitLab say `edit` for `blob`."""
    if repository := os.environ.get("REPOSITORY"):
        page.edit_url = f"{repository.replace('/blob/', '/edit/', 1)}/{page.file.src_uri}"
    return page


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001 - its names
    """Remove the attribute by which the theme asks GitHub and GitLab for stars."""
    return output.replace(' data-md-component="source"', "")


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages, the pictures, and the files and folders that pages link to."""
    root = Path(config.config_file_path).resolve().parents[1]
    paths = _paths(root)
    linked: set[str] = set()

    def led(link: str, folder: str) -> str:
        """Return a link of a page in a folder as the site has it."""
        path = normpath(join(folder, link))
        if path.endswith((".md", *_PICTURES)) or not (path in paths or _within(path, paths)):
            return link  # a page or a picture; or nothing, and mkdocs says so
        if repository := os.environ.get("REPOSITORY"):
            return f"{repository}/{path}"
        if f"{path}/README.md" in paths:
            return f"{link}/README.md"
        linked.add(path)
        return relpath(_page(path, paths), folder)

    def add(path: str, text: str) -> None:
        text = _LINK.sub(lambda link: led(link[0], dirname(path)), text)
        page = File.generated(config, path, content=text)
        if dirname(path):  # else mkdocs makes index.html of a README.md
            page.dest_uri = f"{path.removesuffix('.md')}.html"
        files.append(page)

    for path in paths:
        if path.endswith(".md"):
            add(path, _ROW.sub(_row, (root / path).read_text()))
        elif path.endswith(_PICTURES):
            files.append(File.generated(config, path, abs_src_path=str(root / path)))
    for folder in sorted(linked.difference(paths)):
        content = _listing(folder, paths)
        files.append(File.generated(config, _page(folder, paths), content=content))
    for path in sorted(linked.intersection(paths)):
        text = _shown(path, (root / path).read_text(errors="replace"))
        files.append(File.generated(config, _page(path, paths), content=text))


def _paths(root: Path) -> list[str]:
    """Return the files that git does not ignore, without those of tools, sorted."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)  # noqa: S603 - git
    names = sorted({*done.stdout.split("\0")})
    return [name for name in names if name[:1] != "." and (root / name).is_file()]


def _row(row: re.Match[str]) -> str:
    """Return a row of a table without what GitHub wants before a | in code, and shows nobody."""
    return _CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0])


def _within(folder: str, paths: list[str]) -> list[str]:
    """Return what lies in a folder: its files, and each folder in it with a slash."""
    names = [path.removeprefix(f"{folder}/") for path in paths if path.startswith(f"{folder}/")]
    return [*dict.fromkeys(name.partition("/")[0] + "/" * ("/" in name) for name in names)]


def _page(path: str, paths: list[str]) -> str:
    """Return where the site shows a file, or lists a folder."""
    return f"source/{path}.md" if path in paths else f"source/{path}/README.md"


def _listing(folder: str, paths: list[str]) -> str:
    """Return the page of a folder: names, and no links, or half of the code would become pages."""
    rows = [f"- `{name}`" for name in _within(folder, paths)]
    return "\n".join([f"{_HEAD}# `{folder}/`\n", *rows])


def _shown(path: str, text: str) -> str:
    """Return the page of a file."""
    lexer = find_lexer_class_for_filename(basename(path))
    fence = "`" * (1 + max(map(len, re.findall("`{2,}", text)), default=2))
    return f"{_HEAD}# `{path}`\n\n{fence}{lexer.aliases[0] if lexer else ''}\n{text}\n{fence}\n"
