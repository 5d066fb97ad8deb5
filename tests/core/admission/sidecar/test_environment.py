"""Environment variables of every sidecar, and of settings other than the default."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import a_plain_pod, find_container, translate
from tests.support.pods import a_rule
from webhook.core.policy.model import DriverLimit, OnExcess, Placement, WhenBlind

SEEN = ["NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"]
BINDING_VARIABLES = ["VRAM_GPUS", "VRAMWARDEN_GPU_ASSIGNMENT"]
PROGRAM_VARIABLES = {
    "poll_interval": ("VRAM_POLL_INTERVAL", "2s"),
    "grace": ("VRAM_GRACE", "0s"),
    "tolerance": ("VRAM_TOLERANCE", "5%"),
    "blind_after": ("VRAM_BLIND_AFTER", "5m"),
    "when_blind": ("VRAM_WHEN_BLIND", WhenBlind.TERMINATE),
    "on_excess": ("VRAM_ON_EXCESS", OnExcess.REPORT),
}


def environment(**rule):
    return find_container(translate(a_plain_pod(), a_rule(**rule)), "vram-enforcer")["env"]


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        ({}, [*BINDING_VARIABLES, "VRAM_DRIVER_LIMIT"]),
        ({"enforcement": {"driver_limit": DriverLimit.OFF}}, BINDING_VARIABLES),
        ({"placement": Placement.NONE}, []),
    ],
    ids=["binding", "without the driver's limit", "no placement"],
)
def test_no_default_is_written(rule, names):
    found = [entry["name"] for entry in environment(**rule)]
    assert found == ["VRAM_CAP_BYTES", *names, *SEEN]


@pytest.mark.parametrize("field", PROGRAM_VARIABLES)
def test_a_setting_that_differs_from_its_default_is_written(field):
    name, value = PROGRAM_VARIABLES[field]
    rule = {"placement": Placement.NONE}
    more = environment(**rule, enforcement={field: value})
    assert [one for one in more if one not in environment(**rule)] == [
        {"name": name, "value": str(value)}
    ]
