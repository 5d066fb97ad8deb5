"""How the sidecar learns its GPUs, and where it may wait for them."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import VISIBLE, a_plain_pod, container_of, translated
from tests.support.pods import a_rule
from webhook.core.policy.values import Placement, Style

GPUS = {"apiVersion": "v1", "fieldPath": "metadata.annotations['vramwarden.io/gpu']"}
WAITS = {"apiVersion": "v1", "fieldPath": "metadata.annotations['vramwarden.io/gpu-waits']"}
SEEN = {"apiVersion": "v1", "fieldPath": "metadata.annotations['vramwarden.io/visible-devices']"}
FILES = [{"path": "gpu", "fieldRef": GPUS}, {"path": "gpu-waits", "fieldRef": WAITS}]
VOLUME = {
    "name": "vram-enforcer-gpu",
    "downwardAPI": {"items": FILES, "defaultMode": 0o644},
}
MOUNT = {"name": "vram-enforcer-gpu", "mountPath": "/run/vram-enforcer-gpu", "readOnly": True}
CHOSEN = {"valueFrom": {"fieldRef": SEEN}}


@pytest.mark.parametrize(
    ("style", "placement", "gpus", "seen", "waits"),
    [
        (Style.NATIVE, Placement.BINDING, [{"valueFrom": {"fieldRef": GPUS}}], CHOSEN, True),
        # Nobody waits for a plain container, so it must not wait either.
        (Style.CONTAINER, Placement.BINDING, [{"valueFrom": {"fieldRef": GPUS}}], CHOSEN, False),
        # No annotation will ever come: a sidecar with that variable would wait forever.
        (Style.NATIVE, Placement.NONE, [], {"value": "all"}, False),
        (Style.CONTAINER, Placement.NONE, [], {"value": "all"}, False),
    ],
)
def test_the_sidecar_waits_only_where_a_gpu_may_come_and_somebody_waits_for_it(
    style, placement, gpus, seen, waits
):
    rule = a_rule(placement=placement, enforcement={"style": style})
    pod = translated(a_plain_pod(), rule)
    enforcer = container_of(pod, "vram-enforcer")
    assert [
        {key: value for key, value in entry.items() if key != "name"}
        for entry in enforcer["env"]
        if entry["name"] == "VRAM_GPUS"
    ] == gpus
    for container in (enforcer, container_of(pod, "main")):
        assert {"name": VISIBLE, **seen} in container["env"]
    assert enforcer["volumeMounts"][2:] == ([MOUNT] if waits else [])
    assert pod["spec"]["volumes"][2:] == ([VOLUME] if waits else [])


def test_no_probe_ends_a_sidecar_that_waits():
    probe = container_of(translated(a_plain_pod()), "vram-enforcer")["startupProbe"]
    assert probe["failureThreshold"] == 2**31 - 1  # the most that the API takes
