"""Pod and container of a process, by the cgroup paths of every kind of node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.node.cgroup_trees import (
    BURST,
    CONTAINERD,
    FS,
    ID,
    LIKE_ANOTHER,
    OTHER_ID,
    OTHERS,
    OUR_ID,
    OURS,
    SCOPE,
    THEIRS,
    TREES,
    Tree,
    systemd,
)
from webhook.core.node.cgroups import (
    NO_POD,
    ProcessOwner,
    comparable_uid,
    find_kubepods,
    find_owner,
    list_pod_directories,
    parse_container_id,
    parse_pod_uid,
)

V1 = ("name=systemd", "cpu,cpuacct", "memory", "pids")


@pytest.mark.parametrize("hierarchies", [("",), V1], ids=["v2", "v1"])
@pytest.mark.parametrize("kind", TREES)
def test_each_kind_of_node_names_its_pods_and_containers(kind, hierarchies):
    tree = TREES[kind]
    ours, theirs = tree.lines(*hierarchies)
    assert find_owner(theirs, ours, OURS) == ProcessOwner(tree.pod, tree.container)


@pytest.mark.parametrize(
    ("ours", "theirs", "place"),
    [
        (CONTAINERD, f"{BURST}/{SCOPE}", ProcessOwner(THEIRS, ID)),
        (CONTAINERD, "/kubepods.slice", NO_POD),
        ("/a/kubepods/pod" + OURS, f"/b/kubepods/pod{THEIRS}/{ID}", NO_POD),
        ("/", f"/{LIKE_ANOTHER}", ProcessOwner(OURS)),
        ("/", f"/../{LIKE_ANOTHER}", ProcessOwner(OURS)),
        ("/", f"/../../pod{THEIRS}/{ID}", ProcessOwner(THEIRS, ID)),
        ("/init.scope", f"{BURST}/{SCOPE}", NO_POD),
    ],
)
def test_the_table_of_the_docstring(ours, theirs, place):
    assert find_owner(f"0::{theirs}\n", f"0::{ours}\n", OURS) == place


def test_where_the_unified_hierarchy_is_empty_the_others_say_it():
    """On hybrid nodes every process is at the root of cgroup v2."""
    tree = Tree(CONTAINERD, f"{BURST}/{SCOPE}")
    ours, theirs = (f"{lines}0::/\n" for lines in tree.lines(*V1))
    assert find_owner(theirs, ours, OURS) == ProcessOwner(THEIRS, ID)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(CONTAINERD, "/system.slice/x.service"), ("/", "/../../../../x.service")]
)
def test_in_a_hierarchy_that_nobody_uses_no_process_of_the_node_is_taken_for_ours(ours, theirs):
    hybrid = [f"1:name=systemd:{path}\n2:memory:{used}\n0::/\n" for path, used in
              ((theirs, "/elsewhere"), (ours, "/elsewhere"))]  # fmt: skip
    assert find_owner(*hybrid, OURS) == NO_POD
    assert find_owner(hybrid[1], hybrid[1], OURS) == ProcessOwner(OURS)


def test_where_hierarchies_name_different_pods_nobody_is_believed():
    ours = f"1:pids:{FS}\n2:cpu:{FS}\n"
    theirs = f"1:pids:/kubepods/pod{THEIRS}/{ID}\n2:cpu:/kubepods/pod{OTHERS}/{ID}\n"
    assert find_owner(theirs, ours, OURS) == NO_POD


def test_where_hierarchies_name_different_containers_the_pod_stands_alone():
    ours = f"1:pids:{FS}\n2:cpu:{FS}\n"
    theirs = f"1:pids:/kubepods/pod{THEIRS}/{ID}\n2:cpu:/kubepods/pod{THEIRS}/{OTHER_ID}\n"
    assert find_owner(theirs, ours, OURS) == ProcessOwner(THEIRS)


def test_without_our_own_uid_nothing_is_known_of_absolute_paths():
    ours, theirs = TREES["systemd, containerd, burstable"].lines()
    assert find_owner(theirs, ours, "") == NO_POD


@pytest.mark.parametrize("cgroups", ["", "\n", "0::", "garbage", "0:/x", "::", "\0:\0:\0"])
def test_what_is_no_cgroup_file_names_nobody(cgroups):
    assert find_owner(cgroups, f"0::{CONTAINERD}\n", OURS) == NO_POD
    assert find_owner(f"0::{BURST}/{SCOPE}\n", cgroups, OURS) == NO_POD


def test_uids_are_compared_in_lower_case_and_with_dashes():
    assert comparable_uid("FEEDFACE_AAAA_4BBB_9CCC_DDDD00001111") == THEIRS
    assert comparable_uid(THEIRS) == THEIRS
    assert find_owner(f"0::{BURST}/{SCOPE}\n", f"0::{CONTAINERD}\n", OURS.upper()).pod == THEIRS


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind, tree in TREES.items()
        if tree.pod and not kind.startswith(("private", "we ", "ourselves"))
    ],
)
def test_beside_our_own_each_pods_directory_is_known_by_its_uid(kind):
    tree = TREES[kind]
    parts = tree.theirs.removesuffix(" (deleted)").strip("/").split("/")
    at = next(n for n, part in enumerate(parts) if parse_pod_uid(part) == tree.pod)
    found = list_pod_directories(find_kubepods(tree.ours, OURS), tree.pod)
    assert "/".join(parts[: at + 1]) in found
    assert len(set(found)) == 3
    assert {parse_pod_uid(path.rpartition("/")[2]) for path in found} == {tree.pod}
    assert {parse_container_id(part) for part in parts[at + 1 : at + 2]} <= {tree.container}


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/", OURS),
        ("/user.slice", OURS),
        (CONTAINERD, THEIRS),
        (CONTAINERD, ""),
        (f"/pod{OURS}/{OUR_ID}", OURS),
        (f"/elsewhere/burstable/pod{OURS}", OURS),
    ],
)
def test_without_a_directory_of_all_pods_none_is_guessed(path, own):
    assert find_kubepods(path, own) == ""


@pytest.mark.parametrize(
    "uid", ["", "..", "../x", OURS.upper(), systemd(OURS), f"{OURS}/..", f"{OURS}\n", f" {OURS}"]
)
def test_what_is_no_uid_has_no_directory(uid):
    assert (
        list_pod_directories("kubepods", uid) == list_pod_directories("kubepods.slice", uid) == ()
    )


NAMES = st.one_of(
    st.sampled_from([
        "..", "kubepods.slice", "kubepods", "burstable", f"pod{OTHERS}", f"pod{OURS}",
        f"kubepods-burstable-pod{systemd(OTHERS)}.slice", f"cri-containerd-{OTHER_ID}.scope",
        OTHER_ID, f"crio-{OUR_ID}.scope", "container", " (deleted)", f"pod{OTHERS} (deleted)",
    ]),
    st.text(st.characters(blacklist_characters="/\n\0", codec="utf-8"), min_size=1, max_size=255),
)  # fmt: skip


@given(
    st.sampled_from([kind for kind, tree in TREES.items() if tree.pod and tree.container]),
    st.lists(NAMES.filter(lambda name: name != ".."), max_size=6),
)
def test_whatever_a_tenant_makes_below_its_container_is_that_containers(kind, names):
    tree = TREES[kind]
    theirs = "/".join([tree.theirs.removesuffix(" (deleted)"), *names])
    found = find_owner(f"0::{theirs}\n", f"0::{tree.ours}\n", OURS)
    assert found == ProcessOwner(tree.pod, tree.container)


@given(st.lists(NAMES, max_size=8).map("/".join), st.lists(NAMES, max_size=8).map("/".join))
def test_any_paths_are_read(ours, theirs):
    find_owner(f"0::/{theirs}", f"0::/{ours}", OURS)
