"""Notations of amounts, as a real API server stores them and kubectl applies them twice."""

from __future__ import annotations

import json

import pytest

from tests.core.admission.decisions import decide_pod
from tests.core.pod.test_quantity import SPELLINGS
from tests.support.control_planes import find_binary
from tests.support.pods import a_container, a_pod
from tests.support.webhook_on_cluster import container
from webhook.core.pod.findings import Reason

VRAM = "vramwarden.io/vram"


def test_the_api_server_stores_quantities_as_we_write_them(api, namespace):
    containers = [
        a_container(f"c{number}", resources={"limits": {"memory": written}})
        for number, written in enumerate(SPELLINGS)
    ]
    pod = a_pod(containers=containers)
    pod["metadata"]["namespace"] = namespace
    stored = api.create(pod)["spec"]["containers"]
    written = (item["resources"]["limits"]["memory"] for item in stored)
    assert dict(zip(SPELLINGS, written, strict=True)) == SPELLINGS


def explicit(amount, count="1", kinds=("requests", "limits")):
    resources = {kind: {VRAM: amount} for kind in kinds}
    notes = {"vramwarden.io/gpu-count": count} if count != "1" else {}
    return a_pod(containers=[a_container("main", resources=resources)], annotations=notes)


APPLIED = {
    "annotation 8Gi": (a_pod("8Gi"), "8Gi", "8192"),
    "annotation 1.5Gi": (a_pod("1.5Gi"), "1536Mi", "1536"),
    "annotation 8G": (a_pod("8G"), "7630Mi", "7630"),
    "8Gi": (explicit("8Gi"), "8Gi", "8192"),
    "8192Mi": (explicit("8192Mi"), "8Gi", "8192"),
    "8589934592": (explicit("8589934592"), "8589934592", "8192"),
    "8000000001": (explicit("8000000001"), "8000000001", "7630"),
    "8e9": (explicit("8e9"), "8e9", "7630"),
    "8G": (explicit("8G"), "8G", "7630"),
    "4500M": (explicit("4500M"), "4500M", "4292"),
    "7630Mi": (explicit("7630Mi"), "7630Mi", "7630"),
    "a limit alone": (explicit("4500M", kinds=("limits",)), "4500M", "4292"),
    "for two GPUs": (explicit("9G", "2"), "9G", "4292"),
    "both": (
        a_pod("8G", containers=[a_container("main", resources={"limits": {VRAM: "8000M"}})]),
        "8G",
        "7630",
    ),
}


@pytest.mark.parametrize("how", ["client-side", "server-side"])
@pytest.mark.parametrize(("pod", "stored", "mebibytes"), APPLIED.values(), ids=APPLIED)
def test_applying_twice_changes_nothing(control_plane, team, how, pod, stored, mebibytes):
    if not find_binary("kubectl"):
        pytest.skip("needs kubectl")
    pod["metadata"]["namespace"] = team.namespace
    flags = ["--server-side"] if how == "server-side" else []

    def kubectl(verb):
        made = control_plane.kubectl(verb, *flags, "-f", "-", stdin=json.dumps(pod))
        assert (made.returncode, made.stderr) == (0, "")

    def apply():
        kubectl("apply")
        return team.api.get(pod)

    first = apply()
    resources = container(first, "main")["resources"]
    assert resources == {kind: {VRAM: stored} for kind in ("requests", "limits")}
    env = {variable["name"]: variable.get("value") for variable in container(first, "main")["env"]}
    assert env["VRAMWARDEN_GPU_MEMORY_MIB"] == mebibytes
    assert apply() == first
    kubectl("diff")


FRACTIONS = {"1.1Gi": "1127Mi", "0.3Gi": "308Mi", "2.7Gi": "2765Mi"}


@pytest.mark.parametrize(("amount", "line"), FRACTIONS.items())
def test_a_fraction_of_a_byte_is_denied_with_the_line_to_write(team, amount, line):
    said = team.denies(explicit(amount), Reason.INVALID_QUANTITY)
    offline = decide_pod(explicit(amount))
    assert offline.reasons == ("InvalidQuantity",)
    for message in (said, offline.message):
        assert message.endswith(f" is a fraction of a byte; use {line} in limits and requests")
    assert team.accepts(explicit(line))
