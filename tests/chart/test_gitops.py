"""deploy/gitops.md: what Argo CD and Flux install, and what replicas change."""

from __future__ import annotations

import copy
import re

import pytest
import yaml

from tests.chart.gitops import (
    APPLICATION,
    FLUX,
    FOLDER,
    POLICY_FILE,
    rendered_by_argo,
    rendered_by_flux,
)
from tests.chart.served import served
from tests.support.api_client import path_of
from tests.support.charts import NAMESPACE, a_namespace, hooks, one
from tests.support.control_planes import free_port, wait_until
from tests.support.page_commands import blocks
from tests.support.paths import ROOT
from webhook import __version__

RENDERED = {"Argo CD": rendered_by_argo, "Flux": rendered_by_flux}
KEPT = {"Namespace", "CustomResourceDefinition"}
"""Kinds that other tests need and replicas do not change."""
KEY = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "vramwarden-key", "namespace": NAMESPACE},
}
PAGE = (ROOT / "deploy/gitops.md").read_text()


@pytest.fixture(params=RENDERED)
def tool(request):
    return request.param


@pytest.fixture
def rendered(tool, live_helm, api, tmp_path):
    """Return a tool's rendering of its file in deploy/gitops/."""
    for name in (NAMESPACE, "vramwarden-sentry"):
        api.apply(a_namespace(name))
    return RENDERED[tool](live_helm, api, tmp_path)


def test_the_values_are_valid_and_the_policy_file_is_installed(rendered):
    files = one(rendered, "ConfigMap", "vramwarden-policies")["data"]
    assert sorted(files) == [POLICY_FILE, "default.yaml"]
    text, *_ = (
        block for block in blocks(ROOT / "policies/change.md", "yaml") if POLICY_FILE in block
    )
    assert yaml.safe_load(files[POLICY_FILE]) == yaml.safe_load(text)
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        real = [thing for thing in rendered if thing["kind"] == kind and not hooks(thing)]
        assert one(real, kind)["webhooks"]


def test_the_rendering_names_the_runtime_class_that_argo_cd_cannot_ask_for(rendered, tool):
    pod = one(rendered, "DaemonSet", "vramwarden-agent")["spec"]["template"]["spec"]
    assert pod.get("runtimeClassName") == ("nvidia" if tool == "Argo CD" else None)


def test_helm_makes_the_key_and_argo_cd_does_not(rendered, tool):
    names = [thing["metadata"]["name"] for thing in rendered if thing["kind"] == "Secret"]
    assert ("vramwarden-key" in names) is (tool == "Flux")


@pytest.fixture
def applied(rendered, api):
    """Apply all objects except hooks by server-side apply, as both tools do."""
    objects = [
        manifest for manifest in rendered if not hooks(manifest) and manifest["kind"] not in KEPT
    ]
    for thing in objects:
        api.apply(thing)
    yield objects
    for thing in [*objects, KEY]:
        api.delete(thing)


def drifted(api, objects):
    """Return the objects that another apply would change, by the tools' comparison."""
    query = {"fieldManager": "tests", "force": "true", "dryRun": "All"}
    kind = "application/apply-patch+yaml"
    found = []
    for thing in objects:
        dry = api.request("PATCH", path_of(thing), thing, content_type=kind, **query)
        pair = [copy.deepcopy(dry), api.get(thing)]
        for answer in pair:
            for name in ("managedFields", "resourceVersion", "generation"):
                answer["metadata"].pop(name, None)
        if pair[0] != pair[1]:
            found.append((thing["kind"], thing["metadata"]["name"]))
    return found


def at_free_ports(objects, key_file):
    """Return the Deployment with ports and a key file of this machine."""
    deployment = copy.deepcopy(one(objects, "Deployment"))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    ports = {"--port": free_port(), "--operations-port": free_port()}
    container["args"] = [
        f"{option}={ports[option]}"
        if (option := argument.partition("=")[0]) in ports
        else f"--key-file={key_file}"
        if option == "--key-file"
        else argument
        for argument in container["args"]
    ]
    for port in container["ports"]:
        port["containerPort"] = ports["--port" if port["name"] == "https" else "--operations-port"]
    return deployment


def clients(api, objects):
    """Return the client configuration of each vramwarden webhook."""
    kinds = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    return [
        hook["clientConfig"] for kind in kinds for hook in api.get(one(objects, kind))["webhooks"]
    ]


def test_what_replicas_write_is_no_difference(control_plane, applied, tmp_path):
    """Therefore neither file needs to ignore differences."""
    api = control_plane.api
    assert drifted(api, applied) == []
    (tmp_path / "key").write_text("0" * 43)
    policies = one(applied, "ConfigMap", "vramwarden-policies")
    objects = [at_free_ports(applied, tmp_path / "key"), policies]
    with served(control_plane, objects, tmp_path) as server:
        server.wait_for("readiness", server.ready)

        def written():
            found = clients(api, applied)
            return all("caBundle" in item for item in found) and all(
                "path" in item["service"] for item in found
            )

        wait_until("caBundle and the path of bind", written)
        fence = {**policies, "metadata": {"name": "vramwarden-fence", "namespace": NAMESPACE}}
        wait_until("the fence's rules", lambda: api.get(fence)["data"])
        labels = api.get(fence)["metadata"]["labels"]
    assert drifted(api, applied) == []
    # Argo CD may recognize its objects by this label, and prunes objects that are not in Git.
    assert "app.kubernetes.io/instance" not in labels
    assert "ignoreDifferences" not in APPLICATION["spec"]
    api.delete(fence)


def test_the_only_ignored_field_is_the_key_that_people_change(applied, api, tool):
    *_, release = FLUX
    (ignored,) = release["spec"]["driftDetection"]["ignore"]
    assert ignored == {
        "target": {"kind": "Secret", "name": KEY["metadata"]["name"]},
        "paths": ["/data/key"],
    }
    if tool == "Flux":
        merge = "application/merge-patch+json"
        other = {"stringData": {"key": "1" * 43}}
        api.request("PATCH", path_of(KEY), other, content_type=merge)
        assert drifted(api, applied) == [("Secret", "vramwarden-key")]


@pytest.mark.parametrize("tool", ["Flux"])
def test_flux_changes_each_hook_that_would_crash_it(rendered):
    *_, release = FLUX
    spec = release["spec"]
    assert spec["postRenderStrategy"] == "separate"  # some names occur both in objects and in hooks
    (renderer,) = spec["postRenderers"]
    patched = {
        (patch["target"]["kind"], patch["target"]["name"], operation["path"].rpartition("/")[2])
        for patch in renderer["kustomize"]["patches"]
        for operation in yaml.safe_load(patch["patch"])
    }
    assert patched == {
        (thing["kind"], thing["metadata"]["name"], key.replace("/", "~1"))
        for thing in rendered
        for key in thing["metadata"].get("annotations") or ()
        if key == "helm.sh/hook-output-log-policy"
    }


def test_both_files_name_this_release():
    git, *_ = APPLICATION["spec"]["sources"]
    _, repository, _ = FLUX
    wanted = f"v{__version__}"
    assert (git["targetRevision"], repository["spec"]["ref"]["tag"]) == (wanted, wanted)
    assert (git["repoURL"]) == repository["spec"]["url"]


def test_both_give_the_namespace_one_level_of_pod_security():
    namespace, *_ = FLUX
    labels = namespace["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}
    assert APPLICATION["spec"]["syncPolicy"]["managedNamespaceMetadata"]["labels"] == labels


def test_kustomize_makes_the_config_map_that_the_helm_release_reads(control_plane, tmp_path):
    for path in FOLDER.glob("*.yaml"):
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / POLICY_FILE).write_text("spec: {}\n")
    done = control_plane.kubectl("kustomize", str(tmp_path))
    assert done.returncode == 0, done.stderr
    objects = list(yaml.safe_load_all(done.stdout))
    (policy,) = one(objects, "HelmRelease")["spec"]["valuesFrom"]
    made = one(objects, "ConfigMap", policy["name"])
    assert made["data"] == {policy["valuesKey"]: "spec: {}\n"}
    assert made["metadata"]["namespace"] == NAMESPACE


def test_the_page_links_to_each_file_once():
    for path in FOLDER.iterdir():
        assert len(re.findall(rf"\]\(gitops/{re.escape(path.name)}\)", PAGE)) == 1, path.name
