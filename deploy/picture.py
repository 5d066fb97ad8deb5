# ruff: noqa: INP001 - part of a script: it is in no package and no wheel
"""Picture of `vramwarden top -o html` for a small cluster, as an SVG.

The cluster is stored in the tests' API server and read by `top`. Browsers draw the HTML page inside
the SVG (`foreignObject`) even if a README shows it as an image, in light and dark mode.
"""

from __future__ import annotations

from typing import Final
from xml.etree import ElementTree as ET

from tests.support.api_server import ApiServer
from tests.support.clusters import NOW_S, SceneCluster, a_cluster, a_gpu, a_node, a_pod, held
from webhook.tools.top.fetch import TopOptions, read_report
from webhook.tools.top.page import as_html

WIDTH: Final = 940
"""Minimum width of the page without scrolling, in pixels, which keeps its text large."""
HEIGHT: Final = 1090
"""Height of the page in Chromium with DejaVu Sans, whose letters are wide: `body` has 1123, and its
last 60 are empty. With other fonts there are fewer line breaks and more empty space. A test records
the page that was measured."""
_STRANGER: Final = "7d1f9a04-3a52-4f0e-9c1e-0b6f2d0c91ab"
_TITLE: Final = "What vramwarden top -o html shows of a small cluster"
_AROUND: Final = f"""\
:root {{ width: {WIDTH}px; min-width: 0; height: {HEIGHT}px; background: var(--paper);
  outline: 1px solid var(--line); outline-offset: -1px; }}
.wide {{ overflow: visible; }}
"""
"""Style of the picture, which shows the whole page without scrolling."""


def top_page() -> str:
    """Return the page that a user of team-a sees."""
    kube = scene().stored_in(ApiServer()).kube()
    return as_html(read_report(kube, TopOptions(namespace="team-a")))


def top_picture() -> str:
    """Return the page as an SVG without external resources."""
    page = ET.fromstring(top_page().partition("\n")[2])  # noqa: S314 - our own page
    (style,), (body,) = page.iter("style"), page.iter("body")
    body.set("xmlns", "http://www.w3.org/1999/xhtml")
    style.text = (style.text or "") + _AROUND
    for folded in body.iter("details"):  # users cannot unfold an image
        folded[1:] = []
    body.insert(0, style)
    size = {"width": f"{WIDTH}", "height": f"{HEIGHT}"}
    whole = ET.Element("svg", size, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img")
    whole.set("xmlns", "http://www.w3.org/2000/svg")
    ET.SubElement(whole, "title").text = _TITLE
    ET.SubElement(whole, "foreignObject", size).append(body)
    ET.indent(whole, " ")  # short lines keep diffs small
    return ET.tostring(whole, encoding="unicode") + "\n"


def scene() -> SceneCluster:
    """Return three nodes that teams share. One pod is near its cap, one is idle, one waits."""
    h100, l40s, a10 = (
        {"product": f"NVIDIA-{name}", "unattributed_bytes": 0}
        for name in ("H100-80GB-HBM3", "L40S", "A10")
    )
    sidecar = {"held_by": "sidecar"}
    train = held("train-0", 40, 31.4, 38.2, **sidecar)
    idle = {"idle_since_s": NOW_S - 6 * 3600}
    llama = held("llama", 16, 6.1, 6.2, **sidecar, **idle)
    nodes = [
        a_node(
            "gpu-1",
            a_gpu(79, train, llama, held("other-1", 12, 9.4), **h100),
            a_gpu(79, train, held("other-2", 20, 14), held("other-3", 8, 6.5), **h100),
        ),
        a_node(
            "gpu-2",
            a_gpu(44, held("embed", 12, 11.8, 11.9, **sidecar), held("other-4", 16, 9), **l40s),
            a_gpu(44, held("whisper", 16, 10.3, 13.6, **sidecar), held("other-5", 24, 20), **l40s),
        ),
        a_node(
            "gpu-3",
            a_gpu(22, held("notebook", 16, 5.3, 12.7, **sidecar), **a10),
            a_gpu(22, held("other-6", 8, 2), unmanaged={_STRANGER: 3.1}, **a10),
        ),
    ]
    pods = [
        a_pod("train-0", "40Gi", node="gpu-1", count=2, owner="Job/train", age_s=86_400),
        a_pod("llama-7c9f-x2kq4", "16Gi", uid="llama", node="gpu-1", age_s=86_400),
        a_pod("embed-1", "12Gi", uid="embed", node="gpu-2"),
        a_pod("whisper-1", "16Gi", uid="whisper", node="gpu-2"),
        a_pod("notebook-0", "16Gi", uid="notebook", node="gpu-3"),
        a_pod("eval-4", "60Gi"),
    ]
    return a_cluster(nodes, pods)
