"""Changes of other webhooks to a translated pod: warnings that change no outcome."""

from __future__ import annotations

import re

import pytest

from tests.core.admission.decisions import (
    BY_SENTRY,
    VRAM,
    assert_unchanged,
    decide_pod,
    find_container,
    limits,
    merge_into_container,
    request_and_limit,
    translate,
    variable,
)
from tests.support.pods import a_container, a_pod, a_rule
from webhook.core.admission.decision import Phase
from webhook.names import DEFAULT_CONTAINER_ANNOTATION as DEFAULT

OWN = a_rule(enforcement={"image": "registry.example/own:2"})


@pytest.mark.parametrize(
    ("rule", "image", "is_mirrored"),
    [
        (a_rule(), "mirror.example/vramwarden/enforcer:1", True),
        (a_rule(), "mirror.example:5000/enforcer:1", True),
        (OWN, "mirror.example/own:2", True),
        (a_rule(), "vramwarden/enforcer:1", False),
        (a_rule(), "vramwarden/enforcer:0", False),  # from another release
        (a_rule(), "mirror.example/vramwarden/enforcer:0", False),
        (BY_SENTRY, "mirror.example/vramwarden/enforcer:1", False),
    ],
)
def test_an_image_that_a_mirror_wrote_is_restored_with_a_warning(rule, image, is_mirrored):
    pod = translate(a_pod("8Gi"), a_rule() if rule is BY_SENTRY else rule)
    find_container(pod, "vram-enforcer")["image"] = image
    decision = decide_pod(pod, rule)
    assert decision.allowed
    written = rule.enforcement.image
    if rule is not BY_SENTRY:
        assert find_container(decision.obj, "vram-enforcer")["image"] == written
    said = (
        "spec.initContainers[0].image: ask your platform team to write enforcer.repository: "
        f'"{image.rpartition(":")[0]}" (or enforcement.image of rule "default") if nodes pull only '
        f'from there; it was restored to "{written}"'
    )
    assert decision.notes == ((said,) if is_mirrored else ())


DIGEST = f"sha256:{'a' * 64}"
REWRITTEN = {
    f"vramwarden/enforcer:1@{DIGEST}": f'enforcer.repository: "vramwarden/enforcer" and '
    f'enforcer.digest: "{DIGEST}"',
    f"vramwarden/enforcer@{DIGEST}": f'enforcer.repository: "vramwarden/enforcer" and '
    f'enforcer.digest: "{DIGEST}"',
    f"mirror.example:5000/enforcer@{DIGEST}": (
        f'enforcer.repository: "mirror.example:5000/enforcer" and enforcer.digest: "{DIGEST}"'
    ),
    "mirror.example:5000/enforcer:1": 'enforcer.repository: "mirror.example:5000/enforcer"',
    "vramwarden/enforcer:stable": (
        'enforcer.repository: "vramwarden/enforcer" and enforcer.tag: "stable"'
    ),
}


@pytest.mark.parametrize(("image", "lines"), REWRITTEN.items(), ids=REWRITTEN)
def test_an_image_that_is_rewritten_last_is_named_with_values_that_have_the_pod_admitted(
    image, lines
):
    def rewrite(pod):
        found = find_container(pod, "vram-enforcer")
        if "@" not in found["image"] and "stable" not in found["image"]:
            found["image"] = image
        return pod

    pod = a_pod("8Gi")
    (found,) = decide_pod(rewrite(translate(pod)), phase=Phase.VALIDATE).findings
    assert (found.reason, found.path) == ("Unmutated", "spec.initContainers[0].image")
    assert found.detail == (
        f'ask your platform team to write {lines} (or enforcement.image of rule "default"); '
        f'another webhook changed the image from "vramwarden/enforcer:1" to "{image}"'
    )
    values = dict(re.findall(r'enforcer\.(\w+): "([^"]+)"', lines))
    written = values["repository"]  # built as by the chart
    written += f"@{values['digest']}" if "digest" in values else f":{values.get('tag', 1)}"
    for wanted in (written, image):
        rule = a_rule(enforcement={"image": wanted})
        assert_unchanged(decide_pod(rewrite(translate(pod, rule)), rule, Phase.VALIDATE))


LATE = {
    "InvalidQuantity": lambda pod: noted(pod, "vramwarden.io/gpu-memory", "8GB"),
    "InvalidCount": lambda pod: noted(pod, "vramwarden.io/gpu-count", "two"),
    "UnknownContainer": lambda pod: noted(pod, DEFAULT, "gone"),
    "UnknownClass": lambda pod: noted(pod, "vramwarden.io/gpu-class", "none"),
    "ConflictingAmounts": lambda pod: noted(pod, "vramwarden.io/gpu-memory", "16Gi"),
    "HostPID": lambda pod: pod["spec"].update(hostPID=True),
    "HostIPC": lambda pod: pod["spec"].update(hostIPC=True),
    "ProcessNamespaceNotShared": lambda pod: pod["spec"].update(shareProcessNamespace=False),
    "NodeNamePreset": lambda pod: pod["spec"].update(nodeName="node-1"),
    "UnsupportedOS": lambda pod: pod["spec"].update(os={"name": "windows"}),
    "EnforcementImpossible": lambda pod: pod["spec"].update(
        resources={"limits": {"memory": "64Mi"}}
    ),
    "DriverVariable": lambda pod: merge_into_container(
        pod, "main", variable("CUDA_MPS_PIPE_DIRECTORY", "/x")
    ),
    "RequestsLimitsMismatch": lambda pod: merge_into_container(
        pod, "main", request_and_limit(VRAM, "1Gi", "8Gi")
    ),
    "FractionalWholeGPU": lambda pod: merge_into_container(
        pod, "main", request_and_limit("nvidia.com/gpu", "500m", "500m")
    ),
    "TooComplex": lambda pod: pod["spec"].update(tolerations=[{}] * 600),
}


def noted(pod, key, value):
    pod["metadata"]["annotations"][key] = value


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("reason", LATE)
def test_a_denial_of_a_pod_that_was_translated_names_another_webhook(reason, phase):
    pod = translate(a_pod("8Gi"))
    assert decide_pod(pod, phase=phase).allowed
    LATE[reason](pod)
    decision = decide_pod(pod, phase=phase)
    assert reason in decision.reasons
    for finding in decision.findings:
        assert finding.detail.count("another webhook") == 1
    assert "if you did not write it, another webhook" not in decision.message or (
        reason == "FractionalWholeGPU"
    )
    del pod["metadata"]["annotations"]["vramwarden.io/admitted"]
    first = decide_pod(pod, phase=phase).findings[0].detail
    assert "may have changed the pod after vramwarden" not in first


def test_a_default_container_that_is_named_late_is_named_with_the_line_that_helps():
    """Translation wrote the container's amount, so the message does not blame the author."""
    pod = a_pod("8Gi", containers=[a_container("main"), a_container("other")])
    late = translate(pod)
    noted(late, DEFAULT, "other")
    (found,) = decide_pod(late).findings
    assert found.detail == (
        "write main=8Gi in vramwarden.io/gpu-memory; it sets 8Gi but the annotation "
        f'vramwarden.io/gpu-memory gives VRAM only to "other"; {DEFAULT} names it; another '
        "webhook may have changed the pod after vramwarden"
    )
    noted(pod, "vramwarden.io/gpu-memory", "main=8Gi")
    late = translate(pod)
    noted(late, DEFAULT, "other")
    assert_unchanged(decide_pod(late))


def test_a_variable_that_translation_wrote_is_not_said_to_be_another_webhooks():
    pod = translate(a_pod(containers=[a_container(**limits(VRAM, "8Gi"))]))
    pod["spec"]["containers"][0].pop("resources")
    del pod["metadata"]["annotations"]["vramwarden.io/admitted"]
    (found,) = [one for one in decide_pod(pod).findings if one.reason == "VisibleDevicesOverride"]
    assert "another webhook" not in found.detail
