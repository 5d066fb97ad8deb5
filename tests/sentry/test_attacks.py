"""Twenty tenants attack at once on a node: sidecars and sentry are real programs.

Each tenant holds 70Gi of 8Gi, or at least 11Gi, and attacks its sidecar as `tenant.py` describes.
Pods by Sentry have no sidecar, and a few more of them attack. If the stub of the driver enforces
the caps, tenants additionally hold memory that the driver does not count.
"""

from __future__ import annotations

import pytest

from tests.sentry import nodes
from tests.sentry.scenarios import ATTACKS, BY_SENTRY, CAPPED, GUARDED, NEIGHBOURS, uid_of

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("sentry")]

STALE_S = 0.5
"""Time in seconds after which the scene's driver may still list an ended process."""

ENDED = {"kill", "starve", "swapped"}
"""Attacks that end the sidecar: it is killed, or ends itself without file descriptors."""

BY_BOTH = {"supervisor"}
"""Attacks that both enforcers stop: which of them is first depends on the machine."""


HOW = {
    "host cgroups": {"private": False},
    "private cgroups": {"private": True},
    "a driver's limit": {"private": True, "limits": True},
    "by sentry": {"private": False, "by": "Sentry", "shares": False, "driver": "535.54.03"},
    "by sentry, shared": {"private": True, "by": "Sentry", "driver": "550.54.14"},
    "by sentry, no sandbox": {"private": True, "by": "Sentry", "shares": False, "pauses": False},
}
"""The sentry is in the node's cgroup namespace or in a private one. Containers of a pod by
Sentry share the sandbox's PID namespace or not. The runtime has a sandbox process or not."""


@pytest.fixture(scope="module", params=HOW.values(), ids=HOW)
def played(request, library, tmp_path_factory):
    if why := "limits" in request.param and nodes.missing(nodes.V2):
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("node")
    for path in (folder, *folder.parents):
        if path.stat().st_uid == 0 and "pytest" in path.name:
            path.chmod(0o755)  # tenants with other user IDs read files here
    with nodes.Api(tmp_path_factory.mktemp("api")) as api:
        result = nodes.play(folder, library, api, "attacked", **request.param)
    more = {"by": "Sidecar", "pauses": True} | request.param
    return result | {"written": api.written, "figures": api.figures} | more


@pytest.fixture
def by_sentry(played):
    if played["by"] != "Sentry":
        pytest.skip("these pods have sidecars")
    return played


def of(events, uid):
    return [event["msg"] for event in events if event.get("uid") == uid]


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_excess_ends(played, attack):
    """`test_judge` and `test_pause` test the time limits, where time is an argument."""
    pod = played["pods"][attack]
    assert pod["excess"]
    assert pod["lasted_s"] is not None


@pytest.mark.parametrize("attack", ATTACKS)
def test_its_sandbox_and_its_enforcer_are_spared(played, attack):
    pod, has_sidecar = played["pods"][attack], played["by"] == "Sidecar"
    spared = played["pauses"], has_sidecar and attack not in ENDED
    assert (pod["pause"], pod["enforcer"]) == spared


@pytest.mark.parametrize("attack", sorted(ATTACKS.keys() - BY_BOTH))
def test_its_owner_is_told_by_condition_and_event(played, attack):
    uid = uid_of(1 + list(ATTACKS).index(attack))
    patches = [body for verb, path, body in played["written"]
               if verb == "PATCH" and path.endswith(f"/team/pods/{attack}/status")]  # fmt: skip
    events = [body for verb, _, body in played["written"]
              if verb == "POST" and body["regarding"]["uid"] == uid]  # fmt: skip
    assert patches
    assert {body["metadata"]["uid"] for body in patches} == {uid}
    said = [body["status"]["conditions"][0]["message"] for body in patches]
    assert said == [event["note"] for event in events]
    cap, enough = "the cap is 8Gi", "so write vramwarden.io/gpu-memory: "
    assert all(cap in line and enough in line for line in said)
    assert {"sidecar" in line for line in said} == {played["by"] == "Sidecar"}


def test_one_process_is_enough_where_nobody_comes_after_it(played):
    events = ["stopping a process", "memory came back"]
    told = 1 if played["longest_gap_s"] > STALE_S else len(events) + 1
    for attack in ATTACKS.keys() - BY_BOTH - {"again", "crowd", "fork", "ghost"}:
        uid = uid_of(1 + list(ATTACKS).index(attack))
        assert of(played["events"], uid)[:told] == events[:told]


def test_who_comes_again_ends_with_all_of_its_pod(played):
    for attack in ("again", "crowd"):
        uid = uid_of(1 + list(ATTACKS).index(attack))
        assert of(played["events"], uid)[0] == "stopping a process"
        assert "ending a pod" in of(played["events"], uid)
        assert played["pods"][attack]["tenants"] == 0


def test_whose_sidecar_is_at_work_is_stopped_by_both_together(played):
    """The sidecar's fourth stop ends the container, and the sentry stops at about that time."""
    assert played["pods"]["supervisor"]["tenants"] == 0


def test_memory_whose_owner_ended_is_found_by_whom_it_belonged_to(played):
    uid = uid_of(1 + list(ATTACKS).index("ghost"))
    assert of(played["events"], uid)[0] == "ending a pod"
    assert played["pods"]["ghost"]["tenants"] == 0


def new(name):
    return uid_of(1 + list(BY_SENTRY).index(name))


@pytest.mark.parametrize("attack", sorted(BY_SENTRY.keys() - ATTACKS.keys()))
def test_by_sentry_further_attacks_end_with_one_process(by_sentry, attack):
    pod = by_sentry["pods"][attack]
    assert pod["excess"]
    assert pod["lasted_s"] is not None
    assert pod["pause"] is by_sentry["pauses"]
    assert "ending a pod" not in of(by_sentry["events"], new(attack))


def test_by_sentry_sigterm_comes_first_to_who_handles_it_and_sigkill_after_the_grace(by_sentry):
    events = by_sentry["events"]
    killed = {event["uid"] for event in events if event["msg"] == "killing a process"}
    assert killed == {new("handler"), new("handler-as-user")}
    for attack in ("handler", "handler-as-user"):
        assert by_sentry["pods"][attack]["lasted_s"] >= 1.0  # the grace period
        assert of(events, new(attack))[:2] == ["stopping a process", "killing a process"]


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_by_sentry_another_container_that_holds_little_stays(by_sentry, name):
    assert by_sentry["pods"][name]["tenants"] == 1


def test_a_child_cgroup_named_like_another_pod_deceives_nobody(played):
    assert played["moved"]
    assert of(played["events"], uid_of(100)) == []
    assert played["pods"]["bystander"]["tenants"] == 1


@pytest.mark.parametrize("name", GUARDED)
def test_who_leaves_its_sidecar_alone_is_stopped_by_it_and_the_sentry_says_nothing(name, played):
    if played["by"] == "Sentry":
        pytest.skip("its driver is too old for sidecars")
    pod = played["pods"][name]
    assert (pod["tenants"], pod["excess"], pod["enforcer"]) == (0, True, True)
    assert pod["lasted_s"] is not None
    assert of(played["events"], uid_of(GUARDED[name])) == []


@pytest.mark.parametrize(("name", "contexts"), [("capped", 1), ("forked", 2)])
def test_a_pod_at_its_cap_with_contexts_that_are_not_counted_is_never_stopped(
    name, contexts, played
):
    """The pod runs for longer than it took to stop all the others."""
    pod, limited = played["pods"][name], played.get("limits", False)
    assert (pod["excess"], pod["lasted_s"]) == (limited, None)
    assert (pod["tenants"], pod["enforcer"]) == (
        contexts if limited else 1, played["by"] == "Sidecar",
    )  # fmt: skip
    assert of(played["events"], uid_of(CAPPED[name])) == []


def test_bystanders_live(played):
    pods = played["pods"]
    alive = {
        name: (pods[name]["pause"], pods[name]["tenants"]) for name in ("bystander", "stranger")
    }
    assert alive == {"bystander": (played["pauses"], 1), "stranger": (True, 1)}
    assert played["others"]
    reports = {"stopping a process", "ending a pod", "processes of the pod were stopped"}
    attackers = {uid_of(1 + number) for number in range(len(BY_SENTRY))}
    assert {event["uid"] for event in played["events"] if event["msg"] in reports} <= attackers


def test_the_nodes_own_processes_are_reported_and_not_touched(played):
    found = [event["why"] for event in played["events"] if event["msg"] == "unmanaged memory"]
    assert [why.partition(" are held by ")[2] for why in found] == [
        "processes of no pod; they can push pods out of memory"
    ]
    assert 'pod_uid="",uuid="gpu-1111' in played["metrics"]
    nodes_events = [body["reason"] for verb, _, body in played["written"]
                    if verb == "POST" and body["regarding"]["kind"] == "Node"]  # fmt: skip
    assert nodes_events == ["VRAMUnmanaged"]


def test_a_line_that_does_not_let_it_act_is_never_acted_on(played):
    unheld = played["pods"]["unheld"]
    assert (unheld["excess"], unheld["lasted_s"], unheld["tenants"]) == (True, None, 1)
    assert of(played["events"], uid_of(103)) == []


def test_the_nodes_figures_are_written_for_its_node(played):
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid"}
    first = played["figures"][0]
    assert first["metadata"] == {"name": "n1", "ownerReferences": [owner]}
    assert first["status"]["enforcement"] == "sidecar"


def test_it_looks_on_and_ends_when_it_is_asked(played):
    assert (played["ready"], played["live"], played["code"]) == ("ok\n", "ok\n", 0)


def test_every_event_is_known(played):
    known = {
        "started", "stopping a process", "memory came back", "ending a pod",
        "processes of the pod were stopped", "unmanaged memory", "nobody was left to stop",
        "killing a process",
    }  # fmt: skip
    if played["longest_gap_s"] > STALE_S:
        known.add("memory did not come back")
    found = {event["msg"] for event in played["events"]}
    assert found <= known, [event for event in played["events"] if event["level"] == "error"]
