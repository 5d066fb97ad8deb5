"""The published JSON Schema and the README agree with the code."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from deploy.generate import policy_fields
from tests.adapters.policy.policy_strategies import WHOLE, anything, places, replaced
from tests.support.paths import POLICIES
from tests.support.policies import HEAD, SHIPPED, load_spec, problems, problems_of_spec
from webhook.adapters.policy.files import shipped_policy_path
from webhook.adapters.policy.models import PolicyFile
from webhook.adapters.policy.schema import json_schema
from webhook.adapters.yaml_documents import read_documents

VALIDATOR = Draft202012Validator(json_schema())


def is_accepted(text: str) -> bool:
    documents, problems = read_documents("f", text.encode())
    assert problems == []
    return all(VALIDATOR.is_valid(document.value) for document in documents)


def test_the_schema_is_a_valid_one():
    Draft202012Validator.check_schema(json_schema())
    assert json_schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert json_schema()["$id"]
    assert json_schema()["title"]


def test_every_field_has_a_description():
    described = dict(policy_fields(json_schema()))
    assert len(described) > 60
    assert all(field["description"].endswith(".") for field in described.values())


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_the_schema_accepts_every_shipped_file(file):
    assert is_accepted(file.read_text())


@pytest.mark.parametrize(
    "spec",
    [
        "  rulez: []",
        "  rules: [{action: Warn}]",
        "  rules: [{name: A_b}]",
        "  rules: [{name: a, match: {namespaces: []}}]",
        "  rules: [{name: a, match: {namespaces: [A]}}]",
        "  rules: [{name: a, action: enforce}]",
        "  rules: [{name: a, memory: {maxx: 1Gi}}]",
        "  rules: [{name: a, memory: {max: true}}]",
        "  rules: [{name: a, gpuCount: {max: 0}}]",
        "  rules: [{name: a, nodeSelector: {a: true}}]",
        "  rules: [{name: a, nodeSelector: {a b: c}}]",
        "  rules: [{name: a, tolerations: [{effect: NoRun}]}]",
        "  rules: [{name: a, env: [{name: VRAM_X, value: a}]}]",
        "  rules: [{name: a, env: [{name: NVIDIA_VISIBLE_DEVICES, value: a}]}]",
        "  rules: [{name: a, enforcement: {grace: 5}}]",
        "  rules: [{name: a, enforcement: {grace: 5 s}}]",
        "  rules: [{name: a, enforcement: {image: a b}}]",
        "  rules: [{name: a, tolerations: }]",
        "  rules: [{name: a, isolation: Root}]",
        "  rules: [{name: a, hostPaths: safe}]",
        "  rules: [{name: a, hostPaths: [data]}]",
        "  rules: [{name: a, hostPaths: null}]",
        "  rules: [{name: a, capabilities: [CAP_KILL]}]",
        "  rules: [{name: a, resourceClaims: Allow}]",
        "  classes: {A: {}}",
        "  classes: {a: {max: 1Gi}}",
        "  wholeGPUResources: ['*']",
        "  examples: [{name: a, pod: {namespace: a}, expect: {}}]",
        "  examples: [{name: a, pod: {namespace: a}, expect: {allowed: true, reasons: [x]}}]",
    ],
)
def test_the_schema_rejects_what_the_code_rejects(tmp_path, spec):
    assert problems_of_spec(tmp_path, spec)
    assert not is_accepted(HEAD + spec)


@pytest.mark.parametrize(
    "spec",
    [
        "  {}",
        "  rules: [{name: a, memory: {min: null, max: 8e9}}]",
        "  rules: [{name: a, memory: {max: 8589934592}, runtimeClassName: null}]",
        "  rules: [{name: a, env: [{name: VRAMX, value: ''}]}]",
        "  rules: [{name: a, env: [{name: NVIDIA_VISIBLE_DEVICES_X, value: a}]}]",
        "  rules: [{name: a, tolerations: [{operator: Exists, tolerationSeconds: null}]}]",
        "  rules: [{name: a, enforcement: {by: None, tolerance: 0, grace: 1m30s, image: null}}]",
        "  rules: [{name: a, isolation: NonRoot, hostPaths: Safe, resourceClaims: Ignore}]",
        "  rules: [{name: a, hostPaths: [], capabilities: []}]",
        "  rules: [{name: a, hostPaths: [/data, /mnt], capabilities: [KILL, SYS_PTRACE]}]",
        "  rules: [{name: a, nodeSelector: {}, classes: {allowed: [], default: null}}]",
    ],
)
def test_the_schema_accepts_what_the_code_accepts(tmp_path, spec):
    load_spec(tmp_path, spec)
    assert is_accepted(HEAD + spec)


@settings(
    max_examples=settings.default.max_examples * 3, suppress_health_check=[HealthCheck.too_slow]
)
@given(path=st.sampled_from(list(places(WHOLE))), new=anything)
def test_the_code_accepts_nothing_that_the_schema_rejects(path, new):
    value = replaced(WHOLE, path, new)
    try:
        PolicyFile.model_validate(value)
    except ValidationError:
        return
    assert VALIDATOR.is_valid(value)


def test_the_readme_links_every_example_policy():
    text = (POLICIES / "README.md").read_text()
    for file in SHIPPED[1:]:
        assert f"(examples/{file.name})" in text


def test_the_errors_that_the_page_shows_are_real(tmp_path):
    text = (POLICIES / "change.md").read_text()
    shown = re.search(r"```yaml\n(# broken\.yaml.*?)```\n.*?```text\n(.*?)```", text, re.DOTALL)
    file = tmp_path / "broken.yaml"
    file.write_text(shown[1])
    found = [problem.replace(f"{tmp_path}/", "") for problem in problems(file)]
    assert found == shown[2].splitlines()


def test_the_default_policy_is_found_in_a_checkout():
    assert shipped_policy_path() == POLICIES / "default.yaml"


def test_the_default_policy_shows_every_field_of_a_rule():
    (document,), _ = read_documents("default", (POLICIES / "default.yaml").read_bytes())
    rule = PolicyFile.model_validate(document.value).spec.rules[-1]
    for part in (rule, rule.enforcement):
        missing = type(part).model_fields.keys() - part.model_fields_set
        assert not missing, "write it with its default and a comment into policies/default.yaml"
