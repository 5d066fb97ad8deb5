# ruff: noqa: INP001 - part of a script: it is in no package and no wheel
"""Bill of materials of a release, in CycloneDX, for the wheel and both images.

The wheel's packages are those of `deploy/images/runtime.txt`. An image's packages are read from its
layers: Debian packages from dpkg's status file, Python packages from their metadata.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path
from typing import Final

from cyclonedx.model import Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from deploy import oci

NAME: Final = "vramwarden"
_HOME: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "vramwarden.io")
_LOCKED: Final = re.compile(r"^([a-z0-9-]+)==([^\s;]+)", re.MULTILINE)
_STATUS: Final = "var/lib/dpkg/status"
_OS: Final = "usr/lib/os-release"
_METADATA: Final = "opt/vramwarden/lib/*/site-packages/*.dist-info/METADATA"


def write(
    version: str,
    commit: str,
    epoch: int,
    lock: str,
    images: Mapping[str, Path],
    tools: Mapping[str, str],
) -> str:
    """Return the bill of materials as JSON.

    `lock` is the text of the lock file, `images` has layouts by image name, `tools` versions by
    program name.
    """
    root = Component(
        name=NAME,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=f"{NAME}@{version}",
        purl=PackageURL("pypi", None, NAME, version),
        properties=[Property(name="vramwarden:commit", value=commit)],
    )
    python = [_package(ref, "") for ref in locked(lock)]
    shipped = [_image(name, version, images[name]) for name in sorted(images)]
    made = Bom(
        components=[*python, *shipped],
        serial_number=uuid.uuid5(_HOME, commit),
        metadata=BomMetaData(
            component=root,
            timestamp=datetime.fromtimestamp(epoch, UTC),
            tools=ToolRepository(
                components=[
                    Component(name=name, version=tools[name], type=ComponentType.APPLICATION)
                    for name in sorted(tools)
                ]
            ),
        ),
    )
    made.register_dependency(root, python)
    for image in shipped:
        made.register_dependency(image, image.components)
    return JsonV1Dot6(made).output_as_string(indent=2) + "\n"


def locked(lock: str) -> Iterator[PackageURL]:
    """Yield the packages in a lock file."""
    for name, version in _LOCKED.findall(lock):
        yield PackageURL("pypi", None, name, version)


def _package(purl: PackageURL, place: str) -> Component:
    return Component(
        name=purl.name,
        version=purl.version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=f"{place}{purl.to_string()}",
    )


def _image(name: str, version: str, layout: Path) -> Component:
    digest = oci.digest(layout)
    return Component(
        name=f"{NAME}/{name}",
        version=version,
        type=ComponentType.CONTAINER,
        bom_ref=f"{NAME}/{name}@{digest}",
        purl=PackageURL("oci", None, name, digest),
        components=[
            _package(purl, f"{name}/")
            for purl in sorted(set(installed_packages(layout)), key=PackageURL.to_string)
        ],
    )


def installed_packages(layout: Path) -> Iterator[PackageURL]:
    """Yield the distribution's packages and the Python packages in an image."""
    found = oci.files(layout, (_STATUS, _OS, _METADATA))
    parse = HeaderParser().parsestr
    settings = dict(line.split("=", 1) for line in found.get(_OS, "").splitlines() if "=" in line)
    system = settings.get("ID", "linux").strip('"')
    release = f"{system}-{settings.get('VERSION_ID', '').strip(chr(34))}".rstrip("-")
    for entry in found.get(_STATUS, "").split("\n\n"):
        fields = parse(entry)
        if fields.get("Status", "").endswith(" installed"):
            where = {"arch": fields["Architecture"], "distro": release}
            yield PackageURL("deb", system, fields["Package"], fields["Version"], where)
    # Python's official images compile Python and set this variable; dpkg does not list Python.
    for variable in oci.config(layout).get("config", {}).get("Env", []):
        if variable.startswith("PYTHON_VERSION="):
            yield PackageURL("generic", None, "python", variable.partition("=")[2])
    for path, text in found.items():
        if path.endswith("/METADATA"):
            fields = parse(text)
            yield PackageURL("pypi", None, fields["Name"], fields["Version"])
