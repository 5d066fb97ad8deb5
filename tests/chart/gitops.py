"""deploy/gitops/ as rendered by Argo CD and Flux. Neither program runs here.

Argo CD renders with `helm template`, and names the version and the kinds of the API server. Flux
installs with Helm's library, which queries the cluster.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.support.api_client import Api
from tests.support.charts import CHART, DEPLOY, LOADER, Helm
from tests.support.page_commands import blocks
from tests.support.paths import ROOT

Json = dict[str, Any]

FOLDER = DEPLOY / "gitops"
(APPLICATION,) = yaml.safe_load_all((FOLDER / "argocd.yaml").read_text())
FLUX = list(yaml.safe_load_all((FOLDER / "flux.yaml").read_text()))
POLICY_FILE = "10-teams.yaml"


def write_policy(folder: Path) -> Path:
    """Write the policy file of policies/change.md, which both tools read from a repository."""
    text, *_ = (
        block for block in blocks(ROOT / "policies/change.md", "yaml") if POLICY_FILE in block
    )
    path = folder / POLICY_FILE
    path.write_text(text)
    return path


def rendered_by_argo(helm: Helm, api: Api, folder: Path) -> list[Json]:
    """Return Argo CD's rendering of the Application (its util/helm/cmd.go, v3.5.1)."""
    chart, policies = APPLICATION["spec"]["sources"]
    assert ROOT / chart["path"] == CHART
    given = chart["helm"]
    files = {f"${policies['ref']}/vramwarden/policies/{POLICY_FILE}": write_policy(folder)}
    return _rendered(
        helm,
        folder,
        given["valuesObject"],
        *("--name-template", given["releaseName"]),
        *("--namespace", APPLICATION["spec"]["destination"]["namespace"]),
        *("--kube-version", api.version.removeprefix("v")),
        *(
            f"--set-file={parameter['name']}={files[parameter['path']]}"
            for parameter in given["fileParameters"]
        ),
        *(f"--api-versions={kind}" for kind in kinds(api)),
    )


def rendered_by_flux(helm: Helm, api: Api, folder: Path) -> list[Json]:
    """Return Flux's rendering of the HelmRelease."""
    *_, release = FLUX
    spec = release["spec"]
    assert ROOT / spec["chart"]["spec"]["chart"] == CHART
    (policy,) = spec["valuesFrom"]
    assert (policy["valuesKey"], policy["literal"]) == (POLICY_FILE, True)
    return _rendered(
        helm,
        folder,
        spec["values"],
        *("--name-template", spec["releaseName"]),
        *("--namespace", release["metadata"]["namespace"]),
        *("--kube-version", api.version, "--dry-run=server"),
        f"--set-file={policy['targetPath']}={write_policy(folder)}",
    )


def _rendered(helm: Helm, folder: Path, values: Json, *options: str) -> list[Json]:
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    text = helm.run("template", str(CHART), "--include-crds", "--values", str(path), *options)
    return [item for item in yaml.load_all(text, LOADER) if item]


def kinds(api: Api) -> list[str]:
    """Return versions and kinds that the API server serves, such as `apps/v1/Deployment`."""
    groups = api.request("GET", "/apis")["groups"]
    versions = [
        "v1",
        *(version["groupVersion"] for group in groups for version in group["versions"]),
    ]
    found = list(versions)
    for version in versions:
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        resources = api.request("GET", path)["resources"]
        found += dict.fromkeys(f"{version}/{resource['kind']}" for resource in resources)
    return found
