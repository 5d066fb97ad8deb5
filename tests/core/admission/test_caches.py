"""Caches shared by pods store no long strings, and no pod changes their content."""

from __future__ import annotations

import gc
import tracemalloc

import orjson

from tests.core.admission.decisions import VRAM, decide_pod
from tests.support.pods import a_container, a_pod, a_rule
from webhook.core.admission.decision import Phase
from webhook.names import ADMITTED_ANNOTATION, ENFORCER_COMMAND, ENFORCER_CONTAINER

MIB = 2**20


def long_pod(number):
    """Return a pod translated by another policy, with strings that no other pod has."""
    text = str(number) * MIB
    sidecar = a_container(ENFORCER_CONTAINER, image=text, command=[*ENFORCER_COMMAND])
    app = a_container(image=text, resources={"limits": {"cpu": text, text: "1"}})
    annotations = {ADMITTED_ANNOTATION: "v1 default 999999999999"}
    return a_pod("8Gi", containers=[app, sidecar], annotations=annotations)


def long_amounts(number):
    """Return a pod with a whole GPU and a share, whose amounts have a megabyte of digits each."""
    amount = f"{number}.{'0' * MIB}"
    limits = {"nvidia.com/gpu": amount, VRAM: f"{amount}Gi"}
    return a_pod(containers=[a_container(resources={"limits": limits})])


def test_nothing_long_that_a_tenant_writes_is_remembered():
    tracemalloc.start()
    try:
        for number in range(1, 9):
            decide_pod(long_pod(number), phase=Phase.VALIDATE)
            decide_pod(long_pod(number), phase=Phase.MUTATE)
            decide_pod(long_amounts(number))
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < MIB
    finally:
        tracemalloc.stop()


def test_what_pods_share_is_changed_by_none_of_them():
    def translated(**spec):
        return orjson.dumps(decide_pod(a_pod("8Gi", **spec), a_rule()).patch)

    before = translated()
    odd = {"appArmorProfile": {"type": "Unconfined"}, "seLinuxOptions": {"level": "s0"}}
    others = {
        translated(containers=[a_container(securityContext=odd)]),
        translated(resources={"limits": {"cpu": "500m"}}),
        translated(volumes=[{"name": "v", "emptyDir": {}}]),
    }
    assert before not in others
    assert translated() == before
