"""Pods of Argo workflows have the fields that Argo's controller sets."""

from __future__ import annotations

import pytest
import yaml

from webhook.core.bounds import MAX_TEXT_LENGTH
from webhook.core.pod.pod_templates import format_path
from webhook.core.pod.template_search import find_templates, find_unjudged_fields

HEAD = "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\n"
MEMORY = "vramwarden.io/gpu-memory"
VRAM = "vramwarden.io/vram"


def found(spec: str, read=yaml.safe_load):
    obj = yaml.safe_load(f"{HEAD}spec:\n{spec}")
    (template,) = find_templates(obj, obj["kind"], obj["apiVersion"], read)
    return template


def a_workflow(common: str = "", own: str = "", container: str = "{image: a}"):
    return found(f"  {{{common}templates: [{{{own}container: {container}}}]}}")


@pytest.mark.parametrize(
    ("common", "own", "field", "value", "place"),
    [
        ("nodeSelector: {a: b}", "", "nodeSelector", {"a": "b"}, "spec.nodeSelector"),
        (
            "nodeSelector: {a: b}",
            "nodeSelector: {c: d}",
            "nodeSelector",
            {"c": "d"},
            "spec.templates[0].nodeSelector",
        ),
        ("serviceAccountName: a", "", "serviceAccountName", "a", "spec.serviceAccountName"),
        (
            "serviceAccountName: a",
            "serviceAccountName: b",
            "serviceAccountName",
            "b",
            "spec.templates[0].serviceAccountName",
        ),
        ("schedulerName: a", "", "schedulerName", "a", "spec.schedulerName"),
        ("tolerations: [{key: a}]", "", "tolerations", [{"key": "a"}], "spec.tolerations"),
        ("affinity: {a: b}", "", "affinity", {"a": "b"}, "spec.affinity"),
        ("hostNetwork: true", "", "hostNetwork", True, "spec.hostNetwork"),
        ("dnsPolicy: None", "", "dnsPolicy", "None", "spec.dnsPolicy"),
        ("podPriorityClassName: a", "", "priorityClassName", "a", "spec.podPriorityClassName"),
        (
            "podPriorityClassName: a",
            "priorityClassName: b",
            "priorityClassName",
            "b",
            "spec.templates[0].priorityClassName",
        ),
        (
            "securityContext: {runAsUser: 1}",
            "",
            "securityContext",
            {"runAsUser": 1},
            "spec.securityContext",
        ),
        (
            "resourceClaims: [{name: a}]",
            "",
            "resourceClaims",
            [{"name": "a"}],
            "spec.resourceClaims",
        ),
        (
            "podResources: {limits: {a: 1}}",
            "",
            "resources",
            {"limits": {"a": 1}},
            "spec.podResources",
        ),
        (
            "templateDefaults: {nodeSelector: {a: b}}",
            "",
            "nodeSelector",
            {"a": "b"},
            "spec.templateDefaults.nodeSelector",
        ),
        (
            "podSpecPatch: 'hostIPC: true'",
            "",
            "hostIPC",
            True,
            "spec.podSpecPatch.hostIPC",
        ),
        (
            "podSpecPatch: 'hostIPC: true'",
            "podSpecPatch: '{\"hostIPC\": false}'",
            "hostIPC",
            False,
            "spec.templates[0].podSpecPatch.hostIPC",
        ),
        (
            "podSpecPatch: 'nodeSelector: {a: null}', nodeSelector: {a: b, c: d}",
            "",
            "nodeSelector",
            {"c": "d"},
            "spec.nodeSelector",
        ),
    ],
)
def test_a_field_comes_from_the_template_or_the_workflow_and_is_shown_there(
    common, own, field, value, place
):
    template = a_workflow(f"{common}, ", f"{own}, " if own else "")
    assert template.pod["spec"][field] == value
    assert template.shown(f"spec.{field}") == place
    assert template.unjudged == ()


def test_volumes_of_the_workflow_are_those_that_a_container_mounts():
    template = a_workflow(
        "volumes: [{name: other, hostPath: {path: /a}}, {name: used, hostPath: {path: /dev}}], ",
        "volumes: [{name: own, emptyDir: {}}], ",
        "{image: a, volumeMounts: [{name: used, mountPath: /dev}, {name: own, mountPath: /b}]}",
    )
    assert [volume["name"] for volume in template.pod["spec"]["volumes"]] == ["own", "used"]
    assert template.shown("spec.volumes[1].hostPath.path") == "spec.volumes[1].hostPath.path"
    assert template.shown("spec.volumes[0]") == "spec.templates[0].volumes[0]"


def test_mounts_of_a_set_are_those_of_each_of_its_containers():
    template = found(
        "  volumes: [{name: a, emptyDir: {}}]\n"
        "  templates: [{containerSet: {volumeMounts: [{name: a, mountPath: /a}],"
        " containers: [{name: one}]}}]"
    )
    (container,) = template.pod["spec"]["containers"]
    assert container["volumeMounts"] == [{"name": "a", "mountPath": "/a"}]
    assert [volume["name"] for volume in template.pod["spec"]["volumes"]] == ["a"]


def test_defaults_fill_what_a_template_leaves_out_and_no_other_kind_of_template():
    template = a_workflow(
        "templateDefaults: {metadata: {annotations: {a: default, b: default}}, "
        "script: {image: no}, "
        "container: {image: no, env: [{name: A, value: a}, {name: B, value: b}]}}, ",
        "metadata: {annotations: {a: own}}, ",
        "{image: a, env: [{name: A, value: own}]}",
    )
    annotations = template.pod["metadata"]["annotations"]
    assert (annotations["a"], annotations["b"]) == ("own", "default")
    (container,) = template.pod["spec"]["containers"]
    assert container == {
        "name": "main",
        "image": "a",
        "env": [{"name": "A", "value": "own"}, {"name": "B", "value": "b"}],
    }
    shown = {
        "metadata.annotations[a]": "spec.templates[0].metadata.annotations[a]",
        "metadata.annotations[b]": "spec.templateDefaults.metadata.annotations[b]",
        "spec.containers[0].env[1]": "spec.templateDefaults.container.env[1]",
        "spec.containers[0].image": "spec.templates[0].container.image",
    }
    assert {field: template.shown(field) for field in shown} == shown


def test_a_patch_changes_containers_by_name_and_adds_others():
    patch = (
        "containers: [{name: main, resources: {limits: {vramwarden.io/vram: 4Gi}}, env: null}, "
        "{name: more, image: b}]"
    )
    template = a_workflow(
        own=f"podSpecPatch: '{patch}', ", container="{image: a, env: [{name: A}]}"
    )
    assert template.pod["spec"]["containers"] == [
        {"image": "a", "name": "main", "resources": {"limits": {VRAM: "4Gi"}}},
        {"image": "b", "name": "more"},
    ]
    place = "spec.templates[0].podSpecPatch.containers"
    assert template.shown(f"spec.containers[0].resources.limits[{VRAM}]") == (
        f"{place}[0].resources.limits[{VRAM}]"
    )
    assert template.shown("spec.containers[1].image") == f"{place}[1].image"
    assert template.shown("spec.containers[0].image") == "spec.templates[0].container.image"


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ("a: {{inputs.parameters.x}}", "it holds {{inputs.parameters.x}}"),
        ("a: {{=sprig.x}}", "it holds {{=sprig.x}}"),
        ("a: {{workflow.parameters.unknown}}", "it holds {{workflow.parameters.unknown}}"),
        ("a: {{x", "it holds {{x"),
        ("$patch: replace", "it holds $patch"),
        ("containers: [{name: main, $patch: delete}]", "it holds $patch"),
        ("- a", "it is no YAML that holds fields of a pod's spec"),
        ("a", "it is no YAML that holds fields of a pod's spec"),
        (f"a: {'x' * MAX_TEXT_LENGTH}", f"it has more than {MAX_TEXT_LENGTH:,} characters"),
    ],
)
def test_a_patch_that_is_not_plain_is_named_and_changes_nothing(patch, why):
    obj = {"templates": [{"container": {"image": "a"}, "podSpecPatch": patch}]}
    (template,) = find_templates({"spec": obj}, "Workflow", "argoproj.io/v1", yaml.safe_load)
    ((place, said),) = template.unjudged
    assert (format_path(place), said) == ("spec.templates[0].podSpecPatch", why)
    assert template.pod["spec"] == {"containers": [{"image": "a", "name": "main"}]}


def test_without_a_reader_no_patch_is_judged():
    template = found(
        "  {podSpecPatch: 'hostIPC: true', templates: [{container: {image: a}}]}", None
    )
    assert [format_path(path) for path, _ in template.unjudged] == ["spec.podSpecPatch"]


def test_parameters_whose_values_are_written_are_filled_in_and_long_ones_are_not():
    template = a_workflow(
        "arguments: {parameters: [{name: mem, value: 8Gi}, {name: n, value: 2}, {name: none}, "
        f"{{name: long, value: {'x' * 257}}}]}}, "
        "podSpecPatch: 'priority: {{workflow.parameters.n}}', ",
        "metadata: {annotations: {a: '{{ workflow.parameters.mem }}', "
        "b: '{{workflow.parameters.none}}{{workflow.parameters.long}}'}}, ",
    )
    annotations = template.pod["metadata"]["annotations"]
    assert annotations["a"] == "8Gi"
    assert annotations["b"] == "{{workflow.parameters.none}}{{workflow.parameters.long}}"
    assert template.pod["spec"]["priority"] == 2


def test_templates_of_other_objects_are_named():
    obj = yaml.safe_load(f"""{HEAD}
spec:
  workflowTemplateRef: {{name: all}}
  templates:
  - steps: [[{{templateRef: {{name: one, template: a, clusterScope: true}}}}]]
""")
    said = find_unjudged_fields(obj, "Workflow", "argoproj.io/v1alpha1")
    assert [(format_path(path), why) for path, why in said] == [
        ("spec.workflowTemplateRef", "WorkflowTemplate all"),
        ("spec.templates[0].steps[0][0].templateRef", "ClusterWorkflowTemplate one"),
    ]
    assert find_unjudged_fields(obj, "Workflow", "example.com/v1") == []
