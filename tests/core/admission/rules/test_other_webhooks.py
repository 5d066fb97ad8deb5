"""What other webhooks changed in a pod that was translated: warnings, and nothing else changes."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import BY_SENTRY, container_of, decided, translated
from tests.support.pods import a_pod, a_rule

OWN = a_rule(enforcement={"image": "registry.example/own:2"})


@pytest.mark.parametrize(
    ("rule", "image", "is_mirrored"),
    [
        (a_rule(), "mirror.example/vramwarden/enforcer:1", True),
        (a_rule(), "mirror.example:5000/enforcer:1", True),
        (OWN, "mirror.example/own:2", True),
        (a_rule(), "vramwarden/enforcer:1", False),
        (a_rule(), "vramwarden/enforcer:0", False),  # of another release
        (a_rule(), "mirror.example/vramwarden/enforcer:0", False),
        (BY_SENTRY, "mirror.example/vramwarden/enforcer:1", False),
    ],
)
def test_an_image_that_a_mirror_wrote_is_restored_with_a_warning(rule, image, is_mirrored):
    pod = translated(a_pod("8Gi"), a_rule() if rule is BY_SENTRY else rule)
    container_of(pod, "vram-enforcer")["image"] = image
    decision = decided(pod, rule)
    assert decision.allowed
    written = rule.enforcement.image
    if rule is not BY_SENTRY:
        assert container_of(decision.obj, "vram-enforcer")["image"] == written
    said = (
        "spec.initContainers[0].image: ask your platform team to write enforcer.repository: "
        f'"{image.rpartition(":")[0]}" (or enforcement.image of rule "default") if nodes pull only '
        f'from there; it was restored to "{written}"'
    )
    assert decision.notes == ((said,) if is_mirrored else ())
