"""The limiter's reaction to lists, cgroups and a driver; the stub provides the figures."""

import pytest

from tests.limiter.scene import CAP, GPU, GPUS, MIB, NONE, OTHER, OWN, id_of, uid_of
from webhook.limiter.cgroups import NodeCgroups
from webhook.limiter.driver_limits import PROOF_BYTES

MIG = GPUS.replace("mig=0", "mig=1")
NOT_TRIED = {
    "an older driver": ({"driver": "580.65.06"}, "r615 or newer"),
    "an older driver's library": ({"limits": ""}, "takes no limit"),
    "a mode that is off": ({"limits": "off"}, "takes no limit"),
    "MIG": ({"gpus": MIG}, "in MIG mode"),
    "no GPU": ({"gpus": ""}, "no GPU"),
    "MPS": ({"gpus": GPUS.replace("mig=0", "mig=0 compute=3")}, "as under MPS"),
    "a vGPU": ({"gpus": GPUS.replace("mig=0", "mig=0 virtual=2")}, "is a vGPU"),
    "cgroup v1": ({"controllers": None}, "no mount of cgroup v2"),
    "no cgroups of pods": ({"kubepods": "elsewhere"}, "cgroupsPerQOS"),
    "another pod's UID": ({"own": uid_of(9)}, "set POD_UID"),
    "no UID": ({"own": ""}, "set POD_UID"),
    "dmem, unasked": ({"limits": "dmem", "controllers": "cpu dmem"}, "takes limiter.dmem=true"),
    "dmem that is enabled, unasked": ({"limits": "dmem enabled=1"}, "takes limiter.dmem=true"),
    "dmem without its files": ({"limits": "dmem", "controllers": "dmem", "dmem": True}, "takes no"),
}


@pytest.mark.parametrize("made", NOT_TRIED)
def test_where_the_driver_cannot_it_says_why_once_and_limits_nobody(made, play):
    def scenario(node):
        node.container("pod" + uid_of(1), 1)
        node.list(1)
        for now_s in range(0, 300, 10):
            node.limiter.step(float(now_s))
        sets = [call for call in node.stub.calls() if "SetMemoryLimits" in call]
        state = node.state()
        return node.said("why"), state["proof"], state["limited"], len(sets)

    settings, why = NOT_TRIED[made]
    said, proof, limited, sets = play(scenario, **settings)
    assert said == [["the driver holds no caps here", proof["why"]]]
    assert (proof["holds"], proof["backEnd"], limited) == (False, "", [])
    assert why in proof["why"]
    assert not (sets and "not tried" in proof["why"] and "dmem" not in proof["why"])


@pytest.mark.parametrize(
    ("limits", "dmem", "soft"),
    [("misc", False, CAP), ("misc", True, CAP), ("dmem enabled=1", True, 0)],
)
@pytest.mark.parametrize("kubepods", ["kubepods", "kubelet/kubepods"])
def test_it_proves_it_on_itself_and_limits_a_pod_as_its_cgroup_appears(
    limits, dmem, soft, kubepods, play
):
    def scenario(node, own):
        node.list(1)
        pauses = [node.limiter.step(0.0)]
        before = node.state()
        pauses.append(node.limiter.step(0.1))
        pod = node.container("burstable/pod" + uid_of(1), 1).parent
        node.limiter.step(0.2)
        path = f"{pod.relative_to(node.kubepods)}"
        leaf = f"{path}/{id_of(1)}"
        proofs = [node.limit(item) for item in (own, f"{own}/{id_of(1)}")]
        state = node.state()
        return proofs, pauses, before["limited"], node.limit(path), node.limit(leaf), state

    own = f"besteffort/pod{OWN}"
    proofs, pauses, before, pod, leaf, state = play(
        scenario, own, limits=limits, dmem=dmem, kubepods=kubepods
    )
    assert proofs == [[0, NONE]] * 2  # the limits of the proof are removed again
    assert pauses == [0.1, 0.1]
    assert before == []
    assert pod == leaf == [soft, CAP]
    assert state["proof"] == {"holds": True, "backEnd": limits.split()[0], "why": ""}
    assert state["limited"] == [
        {"uid": uid_of(1), "gpu": GPU, "hard": CAP, "used": 0, "late": False}
    ]


@pytest.mark.parametrize(
    "listed",
    [
        {"limit": "Off"},
        {"cap": 0},
        {"cap": NONE},
        {"uids": ["../kubepods/pod" + uid_of(1)]},
        {"uids": [uid_of(1).upper()]},
        {"gpus": ("GPU-elsewhere",)},
    ],
    ids=str,
)
def test_what_it_is_not_to_hold_or_cannot_read_it_leaves_alone(listed, play):
    def scenario(node, listed):
        node.container("pod" + uid_of(1), 1)
        node.list(1, **listed)
        node.limiter.step(0.0)
        return node.limit("pod" + uid_of(1)), node.state()["limited"]

    assert play(scenario, listed) == [None, []]


def test_each_gpu_of_a_pod_is_limited_all_where_it_sees_all_and_none_in_mig_mode(play):
    def scenario(node, mixed):
        for number in (1, 2):
            node.container(f"pod{uid_of(number)}", number)
        node.list(1, gpus=(GPU, OTHER))
        node.limiter.step(0.0)
        node.list(1, 2, gpus=("*",))
        node.play(gpus=mixed)
        node.limiter.step(700.0)
        return [[item["uid"], item["gpu"]] for item in node.state()["limited"]]

    mixed = f"{GPUS}gpu GPU-c total={MIB} mig=1\n"
    both = [[uid_of(number), gpu] for number in (1, 2) for gpu in (GPU, OTHER)]
    assert play(scenario, mixed) == both


def test_what_the_driver_lost_or_somebody_changed_is_set_again_and_a_cap_never_made_less(play):
    def scenario(node):
        pod = "pod" + uid_of(1)
        node.container(pod, 1)
        node.list(1)
        node.limiter.step(0.0)
        node.set_limit(pod, 0, 99 * CAP)
        node.list(1, cap=CAP - MIB, gpus=(GPU, OTHER))
        node.limiter.step(20.0)
        kept = node.limit(pod), node.limit(pod, OTHER)
        node.list(1, cap=2 * CAP)
        node.limiter.step(20.1)
        node.list()
        node.limiter.step(40.0)
        return kept, node.limit(pod), node.said(), node.state()["limited"]

    kept, left, said, limited = play(scenario)
    again = "a pod's limit was lost, and is set anew"
    assert kept == [[CAP, CAP]] * 2
    assert left == [2 * CAP, 2 * CAP]  # also after the pod has left the list
    new = "a pod is limited"
    assert [msg for (msg,) in said[1:]] == [new, again, new, again]
    assert limited == []


def test_a_replaced_driver_is_proved_and_told_everything_anew(play):
    def scenario(node):
        pod = "pod" + uid_of(1)
        node.container(pod, 1)
        node.list(1)
        node.limiter.step(0.0)
        node.stub.calls()
        node.play(driver="620.1")
        node.limiter.step(20.0)
        sets = [call for call in node.stub.calls() if "SetMemoryLimits" in call]
        node.play(limits="off", driver="625.1")
        node.limiter.step(40.0)
        return len(sets), node.state()["proof"], node.said("back_end", "why")[-1]

    sets, proof, said = play(scenario)
    assert sets == 2 * 2 + 1  # one proof per GPU, and the pod, although its limit reads as expected
    assert proof["holds"] is False
    assert said == ["the driver holds no caps here", None, proof["why"]]


@pytest.mark.parametrize(
    ("limits", "own", "told"),
    [
        ("misc", 99 * CAP, "apart from its pod"),
        ("misc", NONE, "(none)"),
        ("dmem enabled=1", 99 * CAP, "(792Gi)"),
        ("dmem enabled=1", None, ""),
    ],
)
def test_a_containers_own_limit_becomes_the_cap_and_is_told_once(limits, own, told, play):
    def scenario(node, own):
        pod = "pod" + uid_of(1)
        node.container(pod, 1)
        node.list(1)
        node.limiter.step(0.0)
        (node.container(pod, 2) / "container").mkdir()
        leaf, told = f"{pod}/{id_of(2)}", []
        node.limiter.step(0.1)
        if own:
            node.set_limit(leaf, 0, own)
        for now_s in (1.2, 12.0, 24.0):
            node.limiter.step(now_s)
            told.append(len(node.state()["told"]))
        return node.limit(leaf), node.limit(f"{leaf}/container"), node.state()["told"], told

    leaf, below, events, counts = play(scenario, own, limits=limits, dmem=True)
    soft = CAP if limits == "misc" else 0
    assert leaf == below == [soft, CAP]
    assert counts == [len(events)] * 3  # a hook may set the limit moments after a container appears
    assert [event["number"] for event in events] == ([1] if told else [])
    assert all(event["uid"] == uid_of(1) and told in event["why"] for event in events)


def test_a_container_that_holds_more_by_its_own_limit_keeps_no_other_from_the_cap(play):
    def scenario(node):
        pod = "pod" + uid_of(1)
        leaves = [f"{pod}/{id_of(number)}" for number in (1, 2, 3)]
        for number in (1, 2, 3):
            node.container(pod, number)
        node.list(1)
        node.limiter.step(0.0)
        for leaf in leaves:
            node.set_limit(leaf, 0, 99 * CAP)
        node.play(more="fail nvmlDeviceSetMemoryLimits_v1 2 until=1\n")
        node.limiter.step(20.0)
        told = node.state()["told"]
        return [node.limit(leaf)[1] for leaf in leaves], [event["why"] for event in told]

    limits, told = play(scenario)
    assert sorted(limits) == [CAP, CAP, 99 * CAP]
    assert ["denies this limit" in why for why in told].count(True) == 1
    assert len(told) == 3


def test_dmem_is_enabled_down_to_each_pod_and_again_where_it_was_dropped(play):
    def scenario(node):
        pod = node.container("pod" + uid_of(1), 1).parent
        node.list(1)
        for folder in (node.kubepods, node.kubepods / "besteffort"):
            node.control(folder, "")
        node.limiter.step(0.0)
        control = pod / "cgroup.subtree_control"
        enabled = control.read_text(), (node.tree / "cgroup.subtree_control").read_text()
        control.write_text("")
        node.limiter.step(20.0)
        return [*enabled, control.read_text()]

    settings = {"limits": "dmem enabled=1", "controllers": "memory dmem"}
    assert play(scenario, dmem=True, **settings) == ["+dmem"] * 3


@pytest.mark.parametrize(
    ("running", "limited", "late"), [(2, False, False), (3, False, True), (3, True, False)]
)
def test_late_is_what_came_when_more_ran_than_sandbox_and_sidecar(running, limited, late, play):
    def scenario(node, running, limited):
        pod = "pod" + uid_of(1)
        for number in range(1, running + 1):
            node.run(node.container(pod, number))
        if limited:
            node.set_limit(pod, CAP, CAP)
        node.list(1)
        node.limiter.step(0.0)
        found = [node.state()["limited"][0]["late"]]
        node.run(node.container(pod, 9))
        for restart in (node.start, node.list):
            restart()
            node.list(1)
            node.limiter.step(20.0)
            found.append(node.state()["limited"][0]["late"])
        return found

    assert play(scenario, running, limited) == [late] * 3


def test_a_driver_that_is_away_keeps_its_proof_for_a_minute_and_gets_it_back(play):
    def scenario(node):
        node.container("pod" + uid_of(1), 1)
        node.list(1)
        node.limiter.step(0.0)
        node.play(more="fail * 9\n")
        states = []
        for now_s in (70.0, 129.0, 140.0, 160.0):
            if now_s == 160.0:
                node.play()
            node.limiter.step(now_s)
            states.append(node.state())
        return [[state["proof"]["holds"], len(state["limited"])] for state in states]

    assert play(scenario) == [[True, 1], [True, 1], [False, 0], [True, 1]]


def test_a_new_container_is_needed_where_the_library_is_anothers(play):
    def scenario(node):
        from webhook.node_programs.program import NewContainerNeededError  # noqa: PLC0415

        node.limiter.step(0.0)
        node.play(more="fail * 18\n")
        for now_s in (60.0, 100.0):
            try:
                node.limiter.step(now_s)
            except NewContainerNeededError:
                return now_s
        return None

    assert play(scenario) == 60.0


@pytest.mark.parametrize(
    ("code", "said"), [(4, "CAP_SYS_ADMIN of the node"), (2, "denies this limit of this cgroup")]
)
def test_a_driver_that_denies_the_proof_is_quoted_with_what_helps(code, said, play):
    def scenario(node, code):
        node.play(more=f"fail nvmlDeviceSetMemoryLimits_v1 {code}\n")
        node.limiter.step(0.0)
        return node.state()["proof"]["why"]

    assert said in play(scenario, code)


def test_a_pod_that_cannot_be_limited_is_told_and_keeps_no_other_from_it(play):
    def scenario(node):
        for number in (1, 2):
            node.container(f"pod{uid_of(number)}", number)
        node.list(1, 2)
        node.play(more="fail nvmlDeviceSetMemoryLimits_v1 2 from=5 until=5\n")
        node.limiter.step(0.0)
        first = [item["uid"] for item in node.state()["limited"]]
        node.limiter.step(20.0)
        state = node.state()
        return first, node.said(), [item["uid"] for item in state["limited"]], state["told"]

    first, said, then, told = play(scenario)
    assert (first, then) == ([uid_of(2)], [uid_of(1), uid_of(2)])
    assert [msg for (msg,) in said].count("a pod cannot be limited") == len(told) == 1
    assert (told[0]["uid"], "denies this limit" in told[0]["why"]) == (uid_of(1), True)


def test_no_link_is_followed_and_nothing_of_a_pod_is_taken_for_another(play):
    def scenario(node):
        inner = node.container("pod" + uid_of(1), 1) / ("pod" + uid_of(2))
        inner.mkdir()
        elsewhere = node.tree / "elsewhere"
        elsewhere.mkdir()
        (node.kubepods / ("pod" + uid_of(3))).symlink_to(elsewhere)
        node.list(1, 2, 3)
        node.limiter.step(0.0)
        return [item["uid"] for item in node.state()["limited"]], node.limit("../elsewhere")

    assert play(scenario) == [[uid_of(1)], None]


def test_what_a_tenant_makes_does_not_lengthen_the_search_for_itself(play):
    def scenario(node):
        from webhook.limiter import cgroups  # noqa: PLC0415

        cgroups.MOST_SEARCHED = 20
        for number in range(30):  # folders nearer to the root than the limiter's pod
            (node.tree / ("pod" + uid_of(1)) / id_of(number)).mkdir(parents=True)
        node.limiter.step(0.0)
        return node.state()["proof"]["holds"]

    assert play(scenario) is True


def test_its_pace_follows_the_youngest_pod(play):
    def scenario(node):
        pauses = [node.limiter.step(0.0)]
        node.list(1, now_s=1.0)
        pauses += map(node.limiter.step, (1.0, 151.0))
        node.container("pod" + uid_of(1), 1)
        pauses += map(node.limiter.step, (153.0, 154.1, 184.0))
        return [round(pause, 3) for pause in pauses]

    assert play(scenario) == [10.0, 0.1, 2.0, 0.1, 0.1, 2.0]


def test_the_proof_takes_an_amount_that_no_cap_is_below():
    assert PROOF_BYTES == 64 * MIB


def test_every_container_of_the_largest_pod_is_seen_whatever_a_tenant_makes_below_one(tmp_path):
    """A pod can have 256 containers, a sidecar and a sandbox, each with its own limit."""
    for number in range(258):
        (tmp_path / "pod" / id_of(number)).mkdir(parents=True)
    for number in range(900):
        (tmp_path / "pod" / id_of(0) / f"of-a-tenant-{number}").mkdir()
    leaves = NodeCgroups(str(tmp_path), OWN).leaves("pod")
    containers = {leaf.path.removeprefix("pod/") for leaf in leaves}
    assert {id_of(number) for number in range(258)} < containers
    assert len(leaves) == 512
