"""One week in five minutes: first no effect, then reports of excesses, then enforcement.

The steps are those of deploy/one-week.md for one team. The shipped policy applies to all others.
"""

from __future__ import annotations

import copy
import json
import time

import pytest

from tests.e2e.asking import ask, diagnose
from tests.e2e.cluster import SYSTEM
from tests.e2e.pods import GIB, holding, job, pod, statuses
from tests.support.control_planes import ApiError

RULE = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {{name: week}}
spec:
  rules:
  - name: week
    match: {{namespaces: ["{namespace}"]}}
    action: {action}
    enforcement: {{onExcess: {on_excess}}}
"""
AGREEING = 6
"""Number of consecutive equal responses after which both replicas have the policy."""
HELD, OVER = GIB, 12 * GIB


@pytest.fixture(scope="module")
def week(gpu_node, release, values, make_team):
    """Return a team whose rule changes from day to day. The policy is restored at the end."""
    yield Week(make_team(), gpu_node, release, values)
    release.install(values)


class Week:
    """The namespace of a team, and the team's rule."""

    def __init__(self, team, node, release, values):
        self.team = team
        self._node = node
        self._release = release
        self._values = values

    def begin(self, action, on_excess, expected):
        """Install a rule, and wait for the expected results of two pods."""
        text = RULE.format(namespace=self.team.namespace, action=action, on_excess=on_excess)
        self._release.install(self._values | {"policies": {"files": {"10-week.yaml": text}}})
        began = time.monotonic()
        self.team.wait("the rule in force", lambda: self._agree(expected))
        print(f"{action}, {on_excess}: in force {time.monotonic() - began:.1f} s after the upgrade")

    def _agree(self, expected):
        return all((self._try("8Gi"), self._try("8GB")) == expected for _ in range(AGREEING))

    def _try(self, memory):
        """Return None if a pod is denied, else its sidecar's setting."""
        path = f"/api/v1/namespaces/{self.team.namespace}/pods"
        try:
            made = self.team.api.request("POST", path, pod("tried", memory, ["true"]), dryRun="All")
        except ApiError:
            return None
        sidecars = made["spec"].get("initContainers", ())
        env = {
            variable["name"]: variable.get("value") for each in sidecars for variable in each["env"]
        }
        return env.get("VRAM_ON_EXCESS", "Stop") if sidecars else "unchanged"

    def report(self, *options, code):
        where = ("-n", self.team.namespace, "--release", SYSTEM)
        return ask(self._node.kubeconfig, "report", *where, *options, code=code)

    def explain(self, name):
        return ask(self._node.kubeconfig, "explain", name, "-n", self.team.namespace)

    def apply(self, manifest):
        """Create a pod with kubectl; return the warnings."""
        text = json.dumps(manifest)
        done = self._node.kubectl("-n", self.team.namespace, "create", "-f", "-", stdin=text)
        assert done.returncode == 0, done.stderr
        return done.stderr


def test_audit_changes_no_pod_and_the_report_says_what_would_be_denied(week):
    week.begin("Audit", "Stop", ("unchanged", "unchanged"))
    assert "No existing pod would be denied." in week.report(code=0)
    for name, memory in (("right", "8Gi"), ("wrong", "8GB")):
        asked = pod(name, memory, holding("forever"))
        assert week.apply(copy.deepcopy(asked)) == ""
        found = week.team.wait_ready(name)
        assert "initContainers" not in found["spec"]
        assert "vramwarden.io/managed" not in found["metadata"].get("labels", {})
        assert not found["spec"]["containers"][0].get("resources")
    said = week.report(code=1)
    print(said)
    assert "1 pod would be denied." in said
    assert "8GB is not a Kubernetes quantity; use 8G or 8Gi" in said
    assert "1 pod would get the GPU memory" in said
    for name in ("right", "wrong"):
        week.team.delete_pod(name)


def test_report_only_says_who_would_be_stopped_and_nobody_is(week):
    week.begin("Enforce", "Report", ("Report", None))
    team = week.team
    script = holding(f"hold {HELD}; wait_for grow; hold {OVER}; forever")
    team.create(pod("over", "8Gi", script))
    team.wait_ready("over")
    team.run("over", "touch", "/scene/grow")
    began = time.monotonic()

    def events(*words):
        return [event for event in team.events("over") if all(word in event for word in words)]

    by_sidecar = team.wait("the sidecar's Event", lambda: events("would stop a process: over the"))
    print(f"reported by the sidecar {time.monotonic() - began:.1f} s later: {by_sidecar[0]}")
    by_sentry = team.wait("the sentry's Event", lambda: events("VRAMCapExceeded", "nothing is"))
    print(f"reported by the sentry {time.monotonic() - began:.1f} s later: {by_sentry[0]}")
    assert "so write vramwarden.io/gpu-memory: 14Gi (the peak and 15 %)" in by_sidecar[0]

    def counted():
        path = "/apis/vramwarden.io/v1alpha1/gpunodes"
        pods = [
            found_pod
            for node in team.api.list(path)
            for gpu in node.get("status", {}).get("gpus", ())
            for found_pod in gpu["pods"]
        ]
        uid = team.pod("over")["metadata"]["uid"]
        return any(found_pod["uid"] == uid and found_pod.get("wouldStop") for found_pod in pods)

    team.wait("it is counted", counted)
    (found,) = json.loads(week.report("-o", "json", code=1))["overCap"]
    assert (found["pod"], found["capBytes"]) == ("over", 8 * GIB)
    print(week.report(code=1))
    said = week.explain("over")
    print(said)
    assert "reported only" in said
    state = statuses(team.pod("over"))
    assert {item["restartCount"] for item in state.values()} == {0}
    assert all("running" in state[name]["state"] for name in ("main", "vram-enforcer"))
    conditions = team.pod("over")["status"]["conditions"]
    assert "vramwarden.io/CapHeld" not in {condition["type"] for condition in conditions}
    team.delete_pod("over")


def test_enforce_denies_and_stops(week):
    week.begin("Enforce", "Stop", ("Stop", None))
    team = week.team
    said = team.denial(pod("wrong", "8GB", ["true"]))
    assert "use 8G or 8Gi" in said
    team.create(job("wrong", "8GB", ["true"]))
    said = diagnose(team.cluster.kubeconfig, "job/wrong", team.namespace)
    assert "use 8G or 8Gi" in said
    script = holding(f"hold {HELD}; wait_for grow; hold {OVER}; forever")
    team.create(pod("over", "8Gi", script, restartPolicy="Never"))
    team.wait_ready("over")
    team.run("over", "touch", "/scene/grow")
    assert team.wait_ended("over")["exitCode"] != 0
    team.delete_pod("over")
