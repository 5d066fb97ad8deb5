"""A sample of patches is checked before they are sent. A patch that fails is not sent."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from tests.support.pods import a_pod, a_policy, a_review
from webhook.core.admission.decision import Phase
from webhook.core.pod.patch import PatchError
from webhook.server import reviews
from webhook.server.log import JsonLog
from webhook.server.metrics import Metrics
from webhook.server.reviews import MAX_CHECKED_BYTES, PATCH_CHECK_INTERVAL, PodReviews


class Scene:
    """Reviews under a replaceable policy; `wrong` makes checks fail."""

    def __init__(self, monkeypatch):
        self.policy = a_policy()
        self.proven, self.wrong = [], None
        self.log = io.BytesIO()
        self.metrics = Metrics()
        self.reviews = PodReviews(lambda: self.policy, self.metrics, JsonLog(self.log))
        verify_patch = reviews.verify_patch

        def noted(request, patch, policy, cluster):
            self.proven.append((request.uid, policy.digest))
            if self.wrong:
                raise self.wrong
            verify_patch(request, patch, policy, cluster)

        monkeypatch.setattr(reviews, "verify_patch", noted)

    def review(self, uid, pod=None):
        body = json.dumps(a_review(pod or a_pod("8Gi"), uid=str(uid))).encode()
        answer = self.reviews.answer(Phase.MUTATE, body)
        assert answer.status == 200
        return json.loads(answer.body)["response"]

    def check_results(self):
        """Return the numbers of passed and failed checks."""
        name = "vramwarden_patch_checks_total"
        value = self.metrics.registry.get_sample_value
        return tuple(value(name, {"result": result}) for result in ("passed", "failed"))


@pytest.fixture
def scene(monkeypatch):
    return Scene(monkeypatch)


def test_the_first_patch_under_each_policy_is_checked_and_then_one_in_256(scene):
    assert scene.check_results() == (0, 0)
    assert scene.review("plain", a_pod())["allowed"] is True
    assert scene.proven == []  # nothing was patched
    for number in range(PATCH_CHECK_INTERVAL + 1):
        assert scene.review(number)["patch"]
    first = scene.policy.digest
    assert scene.proven == [("0", first), (str(PATCH_CHECK_INTERVAL), first)]
    assert scene.check_results() == (2, 0)

    scene.policy = replace(scene.policy, digest="f" * 64)
    for uid in ("new policy", "again"):
        assert scene.review(uid)["patch"]
    assert scene.proven[2:] == [("new policy", "f" * 64)]


def test_no_patch_of_a_larger_review_is_checked(scene):
    large = a_pod("8Gi", annotations={"note": "x" * MAX_CHECKED_BYTES})
    assert scene.review("large", large)["patch"]
    assert scene.proven == []


@pytest.mark.parametrize("wrong", [PatchError("planted"), KeyError("planted")])
def test_a_patch_that_fails_its_check_is_not_sent_and_the_next_one_is_checked(scene, wrong):
    assert scene.review("good")["patch"]
    for uid in range(PATCH_CHECK_INTERVAL - 1):
        scene.review(uid)
    scene.wrong = wrong
    for uid in ("bad", "bad too"):
        response = scene.review(uid)
        assert (response["uid"], response["allowed"], "patch" in response) == (uid, False, False)
        status = response["status"]
        assert (status["code"], status["reason"]) == (500, "InternalError")
        assert "planted" not in status["message"]
    assert scene.check_results() == (1, 2)
    lines = [json.loads(line) for line in scene.log.getvalue().splitlines()]
    said = [(line["uid"], line["msg"]) for line in lines if line["level"] == "error"]
    assert said == [("bad", "review failed"), ("bad too", "review failed")]
    assert "planted" in lines[-1]["trace"]

    scene.wrong = None
    for uid in ("mended", "and on"):
        assert scene.review(uid)["patch"]
    assert [uid for uid, _ in scene.proven] == ["good", "bad", "bad too", "mended"]
    assert scene.check_results() == (2, 2)


def test_after_a_failure_under_another_policy_the_previous_one_is_checked_again(scene):
    before = scene.policy
    assert scene.review("good")["patch"]
    scene.policy, scene.wrong = replace(before, digest="f" * 64), PatchError("planted")
    assert scene.review("bad")["allowed"] is False
    scene.policy, scene.wrong = before, None
    for uid in ("good again", "and on"):
        assert scene.review(uid)["patch"]
    assert [uid for uid, _ in scene.proven] == ["good", "bad", "good again"]


def test_a_check_applies_the_patch(scene, monkeypatch):
    decide = reviews.decide

    def bad(request, policy, cluster, phase):
        decision = decide(request, policy, cluster, phase)
        return replace(decision, patch=decision.patch[:-1])

    monkeypatch.setattr(reviews, "decide", bad)
    assert scene.review("bad")["status"]["code"] == 500
    assert scene.check_results() == (0, 1)
