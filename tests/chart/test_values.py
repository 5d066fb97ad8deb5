"""Values have a description, a type and documentation. Unknown values are rejected."""

from __future__ import annotations

import json
import re

import pytest
from jsonschema import Draft7Validator

from deploy.generate import chart_values, values, values_schema
from tests.support.charts import CHART, KUBE_VERSION, HelmError

SCHEMA = values_schema()


def nodes(node, path=""):
    """Yield every nested schema."""
    yield path, node
    for name, found in node.get("properties", {}).items():
        yield from nodes(found, f"{path}.{name}")


def test_the_schema_is_a_valid_one_and_the_defaults_meet_it():
    Draft7Validator.check_schema(SCHEMA)
    assert list(Draft7Validator(SCHEMA).iter_errors(values())) == []


def test_the_schema_knows_the_same_values_as_the_file():
    known = {path for path, _ in chart_values(SCHEMA)} - {("global",)}

    def walk(found, path=()):
        for name, value in found.items():
            here = (*path, name)
            if here in known:
                yield here
            else:
                yield from walk(value, here)

    assert set(walk(values())) == known


def test_every_value_is_described_and_closed():
    for path, node in nodes(SCHEMA):
        assert "description" in node or re.search(r"(issuerRef)\.", path), path
        if "properties" in node:
            assert node["additionalProperties"] is False, path


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("webhook.replica=3", "/webhook"),
        ("replicas=3", "replicas"),
        ("webhook.failurePolicy=Fial", "failurePolicy"),
        ("webhook.timeoutSeconds=31", "timeoutSeconds"),
        ("webhook.replicas=0", "replicas"),
        (
            "documentationURL=https://d.example",
            "documentationURL: .* is not a URL with .page. once",
        ),
        (
            "documentationURL=https://d/{page}#x",
            "documentationURL: .* is not a URL with .page. once",
        ),
        ("webhook.configurationName=Last", "configurationName: .Last. is not the name of an obj"),
        ("certificates.mode=cert-manager", "mode"),
        ("certificates.existingSecret.secretName=x", "existingSecret"),
        ("image.digest=abc", "digest"),
        ("image.repository=a/b:1", 'image.repository: "a/b:1" is not the name of an image'),
        ("agent.gpuAccess=privileged", "gpuAccess"),
        ("agent.deviceNames=nvidia.com/gpu", "deviceNames"),
        ("agent.runtimeClassName=auto!", 'agent.runtimeClassName: "auto!" is not the name of a'),
        ("agent.runtimeClassName=auto", r'"auto" would be .+; did you mean Auto\?'),
        ("agent.vram=16GB", 'agent.vram: "16GB" is not an amount of memory; write e.g. 48Gi'),
        ("agent.vram=48 GB", "vram"),
        ("agent.startupTaint=a' || true || 'b", "startupTaint"),
        ("agent.startupTaint=a=b:NoSchedule", "startupTaint"),
        ("sentry.acts=true", "sentry"),
        ("sentry.act=no", "act"),
        ("sentry.namespace=Sentry", "namespace"),
        ("limiter.dmem=Auto", "dmem"),
        ("limiter.enabled=true,sentry.enabled=false", "limiter.enabled: .+ sentry.enabled=true"),
        ("limiter.enabled=true,agent.vram=48Gi", "limiter.enabled: .+ without agent.vram"),
        ("limiter.enabled=true,agent.gpuAccess=Privileged", "limiter.enabled: .+ never privileged"),
        ("exemptNamespaces={kube-system,Team}", "exemptNamespaces"),
        ("exemptNamespaces={kube-system,*}", "exemptNamespaces"),
        ("exemptNamespaces={**}", "exemptNamespaces"),
        ("exemptNamespaces={*-*}", "exemptNamespaces"),
        ("policies.files.readme=x", 'policies.files: "readme" is not the name of a policy file'),
        (r"policies.files.10\.txt=a: b", "policies.files: .10.txt. is not .+; write e.g. 10-teams"),
        (r"policies.files.a\.yaml=b,policies.files.c=d: e", "a.yaml: is no .+ no map of fields"),
        ("rollout=Enforced", "rollout"),
        ("fence.secondline=false", "fence"),
        ("priorityClassName=auto", r"did you mean Auto\?"),
        ("networkPolicy.apiServerCIDRs={everybody}", "apiServerCIDRs"),
    ],
)
def test_a_slip_of_the_pen_is_rejected(helm, wrong, said):
    with pytest.raises(HelmError, match=said):
        helm.render(None, "--set", wrong)


def test_all_that_is_wrong_is_said_at_once(helm):
    with pytest.raises(HelmError) as raised:
        helm.render(None, "--set", "agent.vram=1GB,image.digest=x")
    assert re.findall(r"(\w+[.]\w+): \"", str(raised.value)) == ["agent.vram", "image.digest"]


FORMS = {".".join(path): found["form"] for path, found in chart_values(SCHEMA) if "form" in found}


def test_no_message_shows_a_pattern():
    """Helm would show it, so the schema avoids keywords that Helm cannot state in a sentence."""
    shown = {"pattern", "propertyNames"}
    assert [path for path, node in nodes(SCHEMA) if shown & node.keys()] == []
    assert len(FORMS) > 12


@pytest.mark.parametrize("path", FORMS)
def test_what_a_sentence_says_to_write_is_taken(path):
    form = FORMS[path]
    written = form.get("words", []) + re.findall(r"e\.g\. (\S+)", form["wanted"])
    assert all(re.search(form["pattern"], word) for word in written)
    assert written or "; write " in form["wanted"]


@pytest.mark.parametrize(
    ("incomplete", "said"),
    [
        ("certificates.existingSecret.caBundle=x", r"existingSecret\.name: name a Secret"),
        ("certificates.existingSecret.name=x", r"existingSecret\.caBundle: set it to the CA"),
    ],
)
def test_what_a_mode_needs_is_asked_for(helm, incomplete, said):
    with pytest.raises(HelmError, match=said):
        helm.render(None, "--set", "certificates.mode=existingSecret", "--set", incomplete)


@pytest.mark.parametrize(
    ("named", "missing"), [("enforcer", r"image\.repository"), ("image", r"enforcer\.repository")]
)
def test_images_have_to_be_named(helm, named, missing):
    one = f"{named}.repository=registry.example/one"
    with pytest.raises(HelmError, match=rf"{missing}: name the image .+deploy/install.md"):
        helm.run("template", "vramwarden", str(CHART), "--kube-version", KUBE_VERSION, "--set", one)


def test_namespaces_are_exempt_by_a_part_of_their_names(helm):
    helm.render({"exemptNamespaces": ["team-*", "*-team", "**a*", "a", "a-b"]})


def test_a_policy_that_is_no_yaml_is_rejected(helm):
    with pytest.raises(HelmError, match=r"policies\.files\.10-mine\.yaml"):
        helm.render({"policies": {"files": {"10-mine.yaml": "spec: [\n"}}})


def test_the_chart_passes_helms_own_review(helm):
    helm.run("lint", "--strict", str(CHART))


def test_a_parent_chart_may_share_values(helm):
    helm.render({"global": {"anything": 1}})


def test_the_schema_is_written_as_json_writes_it():
    text = (CHART / "values.schema.json").read_text()
    assert text == json.dumps(SCHEMA, indent=2) + "\n"
