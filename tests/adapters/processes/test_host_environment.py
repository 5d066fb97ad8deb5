"""Checks of the environment: namespaces, visible processes, kernel and own cgroup."""

import ctypes
import os
from pathlib import Path

import pytest

from tests.support.fake_proc import ID, OTHER_ID, put, put_self, stat_line
from tests.support.workload_processes import host_environment, in_namespace, processes
from webhook.core.enforcement.model import Process

POD = "pod6f3a5a8e-0c8d-4a2e-9a53-2f6d0c6f1b11"
SLICE = f"kubepods-burstable-{POD.replace('-', '_')}.slice"
RUNTIMES = [
    (f"0::/../cri-containerd-{ID}.scope", ID),
    (f"0::/../{ID}", ID),
    (f"0::/../../{POD}/{ID}", ID),
    (f"0::/../crio-{ID}.scope", ID),
    (f"0::/../crio-{ID}.scope/container", ID),
    (f"0::/../docker-{ID}.scope", ID),
    (f"0::/../cri-containerd-{ID}.scope (deleted)", ID),
    (f"0::/kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{ID}.scope", ID),
    (f"0::/kubepods/burstable/{POD}/{ID}", ID),
    (f"12:memory:/kubepods/burstable/{POD}/{ID}\n0::/", ID),
    (f"12:memory:/kubepods/burstable/{POD}/crio-{ID}\n", ID),
    (f"12:memory:/docker/{ID}\n11:cpu,cpuacct:/docker/{ID}", ID),
    (f"12:memory:/system.slice/docker-{ID}.scope", ID),
    (f"1:name=systemd:/kubepods.slice/{SLICE}/docker-{ID}.scope", ID),
    (f"9:pids:/system.slice/containerd.service/{SLICE}:cri-containerd:{ID}", ID),
    (f"0::/machine.slice/libpod-{ID}.scope/container", ID),
    (f"12:memory:/docker/{OTHER_ID}/kubelet/kubepods/besteffort/{POD}/{ID}", ID),
    (f"0::/docker/{OTHER_ID}/kubelet.slice/kubelet-kubepods.slice/x/cri-containerd-{ID}.scope", ID),
    (f"0::/../{ID}/init.scope", ID),
    (f"0::/../{ID}/docker/{OTHER_ID}", ID),
    (f"12:memory:/kubepods/{POD}/{ID}/kubepods/{OTHER_ID}", ID),
    ("0::/", ""),
    ("9:name=systemd:/\n0::/", ""),
    ("0::/user.slice/user-1000.slice/session-1.scope", ""),
    (f"0::/../{ID[:-1]}", ""),
    (f"0::/../{ID}0", ""),
    (f"0::/../{ID.upper()}", ""),
    (f"0::/x{ID}", ""),
    ("", ""),
]


@pytest.mark.parametrize(("cgroup", "container"), RUNTIMES)
def test_the_container_is_read_from_every_runtimes_cgroup(cgroup, container, tmp_path):
    proc = put(tmp_path, 7, cgroup=cgroup)
    found = processes.identify(7, proc=proc)
    assert found == Process(7, 4711)
    assert (found.command, found.container) == ("python train.py", container)


@pytest.mark.parametrize(
    ("cgroup", "mounted", "own"),
    [
        ("0::/\n", [""], ""),
        ("0::/kubepods/pod1/leaf\n", ["", "/kubepods/pod1/leaf"], "/kubepods/pod1/leaf"),
        ("0::/kubepods/pod1/leaf\n", [""], ""),  # only our cgroup is mounted
        ("9:cpu:/pod1\n0::/pod2\n", ["", "/pod1", "/pod2"], "/pod2"),
        ("9:cpu:/pod1\n0::/pod2\n", [], None),  # version 1
        ("", [], None),
    ],
)
def test_our_own_cgroup_is_found_where_version_2_is_mounted(cgroup, mounted, own, tmp_path):
    proc, root = put_self(tmp_path / "proc", cgroup=cgroup), tmp_path / "cgroups"
    for path in mounted:
        (root / path.removeprefix("/")).mkdir(parents=True, exist_ok=True)
        (root / path.removeprefix("/") / "cgroup.controllers").touch()
    found = processes.own_cgroup(proc=proc, root=str(root))
    assert found == ("" if own is None else f"{root}{own}")


def test_a_kernel_without_cgroups_leaves_the_container_unknown(tmp_path):
    proc = put(tmp_path, 7)
    (tmp_path / "7" / "cgroup").unlink()
    assert processes.identify(7, proc=proc).container == ""


def test_a_new_pid_namespace_is_told_apart_from_the_nodes(tmp_path):
    def probe():
        fact = host_environment.check_pid_namespace()
        return [fact.holds, fact.reason, str(Path("/proc/self/ns/pid").readlink())]

    holds, reason, name = in_namespace(probe)
    assert holds is True
    assert name in reason
    assert (
        host_environment.check_pid_namespace(proc=put_self(tmp_path, namespace=name)).holds is True
    )


def test_the_nodes_pid_namespace_is_known_by_its_number(tmp_path):
    proc = put_self(tmp_path, namespace="pid:[4026531836]")
    assert host_environment.check_pid_namespace(proc=proc).holds is False
    assert "hostPID" in host_environment.check_shared_process_namespace(proc=proc).reason


def test_a_proc_of_another_namespace_is_seen_through():
    def probe():
        facts = (
            host_environment.check_pid_namespace(),
            host_environment.check_shared_process_namespace(),
        )
        return [[fact.holds, fact.reason.startswith("/proc is another")] for fact in facts]

    assert in_namespace(probe, own_proc=False) == [[None, True], [None, True]]


def test_with_real_cgroups_a_sidecar_sees_the_container_beside_it():
    def probe():
        mounts = map(
            str.split, Path("/proc/self/mountinfo").read_text(encoding="utf-8").split("\n")
        )
        root = next((Path(words[4]) for words in mounts if "cgroup2" in words), None)
        ids = "0123456789abcdef" * 4, "fedcba9876543210" * 4
        pod = Path(f"{root}/vramwarden-test-{os.getpid()}-{id(ids)}")
        folders = [pod / f"cri-containerd-{container}.scope" for container in ids]
        try:
            for folder, pid in zip(folders, (1, os.getpid()), strict=True):
                folder.mkdir(parents=True)
                (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")
            assert ctypes.CDLL(None).unshare(0x02000000) == 0  # CLONE_NEWCGROUP
            first, us = processes.identify(1), processes.identify(os.getpid())
            fact = host_environment.check_shared_process_namespace()
            return [fact.holds, first.container == ids[0], us.container]
        except OSError as error:
            return str(error)
        finally:
            for folder, pid in zip(folders, (1, os.getpid()), strict=True):
                if folder.exists():
                    (root / "cgroup.procs").write_text(str(pid), encoding="ascii")
                    folder.rmdir()
            if pod.exists():
                pod.rmdir()

    if isinstance(seen := in_namespace(probe), str):
        pytest.skip(f"no cgroups can be made here: {seen}")
    assert seen == [True, True, ""]


def test_pid_1_shares_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "getpid", lambda: 1)
    proc = put_self(tmp_path, stat=stat_line(1, parent=0))
    assert host_environment.check_shared_process_namespace(proc=proc).holds is False


def test_a_first_process_of_our_own_is_no_shared_namespace():
    def probe():
        fact = host_environment.check_shared_process_namespace()
        return [fact.holds, fact.reason]

    assert in_namespace(probe) == [
        False, "PID 1 is our own container's; set shareProcessNamespace: true.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "first", "holds"),
    [
        ("0::/", f"0::/../cri-containerd-{ID}.scope", True),
        ("0::/", f"0::/../{ID}", True),
        ("0::/", "0::/../of-another-runtime", True),
        (f"4:memory:/kubepods/{POD}/{ID}", f"4:memory:/kubepods/{POD}/{OTHER_ID}", True),
        (f"4:memory:/kubepods/{POD}/{ID}", f"4:memory:/kubepods/{POD}/{ID}", False),
        (f"4:memory:/kubepods/{POD}/{ID}/a", f"4:memory:/kubepods/{POD}/{ID}/b", False),
        ("0::/", "0::/", None),
        ("0::/../ours", "0::/../ours", None),
        ("0::/", f"0::/docker/{ID}", None),
        ("", "", None),
    ],
)
def test_a_shared_process_namespace_is_recognized_by_cgroups(ours, first, holds, tmp_path):
    put_self(tmp_path, cgroup=ours, stat=stat_line(os.getpid(), parent=0))
    proc = put(tmp_path, 1, cgroup=first, comm="pause\n")
    assert host_environment.check_shared_process_namespace(proc=proc).holds is holds


def test_a_sibling_shows_it_where_pid_1_does_not(tmp_path):
    put_self(tmp_path, stat=stat_line(os.getpid(), parent=0))
    proc = put(tmp_path, 9, cgroup=f"0::/../crio-{ID}.scope")
    fact = host_environment.check_shared_process_namespace(proc=proc)
    assert fact == host_environment.Fact(True, "Process 9 belongs to another container.")


@pytest.mark.parametrize(
    ("banner", "holds", "word"),
    [
        ("6.8.0-45-generic (buildd@lcy02) (gcc-13) #45-Ubuntu SMP", True, "is Linux 6.8.0-45-gen"),
        ("5.15.0-1041-azure (buildd@microsoft) (gcc) #48-Ubuntu", True, "azure"),
        ("4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016", False, "gVisor"),
        ("4.19.0-gvisor #1 SMP Sun Jan 10 15:06:54 PST 2016", False, "gVisor"),
        ("6.1.0-gvisor (root@b) (go) #1 SMP", False, "gVisor"),
        ("6.6.9-custom-WSL2 (o@b) (gcc) #1 SMP", False, "WSL"),
        ("5.15.90.1-microsoft-standard-WSL2 (o@b) (gcc) #1 SMP", False, "WSL"),
        ("4.4.0-19041-Microsoft (Microsoft@Microsoft.com) (gcc)", False, "WSL"),
        (None, None, ""),
    ],
)
def test_kernels_whose_figures_cannot_be_trusted_are_named(banner, holds, word, tmp_path):
    if banner:
        (tmp_path / "version").write_text(f"Linux version {banner}\n", encoding="ascii")
    fact = host_environment.check_kernel(proc=str(tmp_path))
    assert fact.holds is holds
    assert word in fact.reason


def test_this_kernel_can_be_judged():
    assert host_environment.check_kernel().holds is not None
