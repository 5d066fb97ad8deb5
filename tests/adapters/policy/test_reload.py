"""Reload: changes are loaded, errors are reported once, and the last valid policy stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.policies import HEAD, IMAGE, write
from webhook.adapters.policy import files as policy_files
from webhook.adapters.policy.files import PolicyInvalidError, PolicySource, Reload


def rules(source) -> list[str]:
    return [rule.name for rule in source.current.rules]


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "policy", a="  rules: [{name: first}]")


@pytest.fixture
def source(folder):
    return PolicySource(folder, IMAGE)


def test_an_invalid_policy_stops_a_start(tmp_path):
    with pytest.raises(PolicyInvalidError) as caught:
        PolicySource(write(tmp_path / "policy", a="  rulez: []"), IMAGE)
    assert "unknown field" in str(caught.value)
    with pytest.raises(PolicyInvalidError):
        PolicySource(tmp_path / "none", IMAGE)


def test_the_examples_say_what_holds_once_the_rollout_is_over(tmp_path):
    example = """\
  rules: [{name: all}]
  examples:
  - name: nobody sees all GPUs
    pod:
      namespace: a
      spec:
        containers:
        - {name: main, image: x, env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]}
    expect: {allowed: false, reasons: [VisibleDevicesOverride]}
"""
    folder = write(tmp_path / "policy", a=example)
    assert rules(PolicySource(folder, IMAGE)) == ["all"]


def test_nothing_new_is_nothing_to_report(source, folder):
    before = source.current
    (folder / "a.yaml").write_text(HEAD + "  rules: [{name: first}]")  # a new time, the same bytes
    assert source.refresh() == Reload()
    assert source.current is before


@pytest.mark.parametrize("name", ["second", "fjrst"], ids=["longer", "as long"])
def test_a_change_is_loaded_once(source, folder, name):
    write(folder, a=f"  rules: [{{name: {name}}}]")
    reload = source.refresh()
    assert (reload.loaded, reload.problems) == (True, ())
    assert rules(source) == [name]
    assert source.refresh() == Reload()


def test_a_new_file_and_one_that_goes_are_changes(source, folder):
    write(folder, b="  rules: [{name: second}]")
    assert source.refresh().loaded
    assert rules(source) == ["first", "second"]
    (folder / "b.yaml").unlink()
    assert source.refresh().loaded
    assert rules(source) == ["first"]


@pytest.mark.parametrize(
    "bad",
    [
        "  rulez: []",
        "  rules: [",
        "  examples: [{name: a, pod: {namespace: a}, expect: {allowed: false}}]",
    ],
)
def test_an_invalid_change_is_told_once_and_the_last_good_one_stays(source, folder, bad):
    write(folder, a=bad)
    first = source.refresh()
    assert not first.loaded
    assert first.problems == source.problems != ()
    assert rules(source) == ["first"]
    assert source.refresh() == Reload()
    assert source.problems == first.problems

    write(folder, a=bad + " # still")
    assert source.refresh().problems
    write(folder, a="  rules: [{name: second}]")
    assert source.refresh().loaded
    assert (rules(source), source.problems) == (["second"], ())


def test_a_change_taken_back_clears_the_problems(source, folder):
    write(folder, a="  rulez: []")
    source.refresh()
    write(folder, a="  rules: [{name: first}]")
    assert source.refresh().loaded
    assert source.problems == ()


def test_a_folder_that_is_gone_for_a_moment_changes_nothing(source, folder):
    aside = folder.rename(folder.with_name("aside"))
    assert "cannot be read" in str(source.refresh().problems[0])
    assert source.refresh() == Reload()
    assert source.problems
    assert rules(source) == ["first"]
    aside.rename(folder)
    source.refresh()
    assert source.problems == ()
    assert rules(source) == ["first"]


class ConfigMapMount:
    """A folder as the kubelet's atomic writer writes it: files link to ..data, which is a link."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.version = 0
        path.mkdir()

    def update(self, **files: str) -> None:
        self.version += 1
        data = self.path / f"..2025_01_0{self.version}"
        write(data, **files)
        new = self.path / "..data_tmp"
        new.symlink_to(data.name)
        new.rename(self.path / "..data")
        for name in files:
            link = self.path / f"{name}.yaml"
            if not link.is_symlink():
                link.symlink_to(f"..data/{name}.yaml")


def test_a_config_map_is_read_and_reloaded(tmp_path):
    mount = ConfigMapMount(tmp_path / "mount")
    mount.update(a="  rules: [{name: a1}]", b="  rules: [{name: b1}]")
    source = PolicySource(mount.path, IMAGE)
    assert rules(source) == ["a1", "b1"]
    mount.update(a="  rules: [{name: a2}]", b="  rules: [{name: b2}]")
    assert source.refresh().loaded
    assert rules(source) == ["a2", "b2"]


def test_a_swap_in_the_middle_never_mixes_two_versions(tmp_path, monkeypatch):
    mount = ConfigMapMount(tmp_path / "mount")
    mount.update(a="  rules: [{name: a1}]", b="  rules: [{name: b1}]")
    read = policy_files._read

    def read_and_swap(path, **options):
        data = read(path, **options)
        if mount.version == 1:
            mount.update(a="  rules: [{name: a2}]", b="  rules: [{name: b2}]")
        return data

    monkeypatch.setattr(policy_files, "_read", read_and_swap)
    source = PolicySource(mount.path, IMAGE)
    assert rules(source) == ["a1", "b1"]
    assert source.refresh().loaded
    assert rules(source) == ["a2", "b2"]


def test_a_link_to_a_checkout_is_followed_once(tmp_path, monkeypatch):
    for version in ("1", "2"):
        write(
            tmp_path / version,
            a=f"  rules: [{{name: a{version}}}]",
            b=f"  rules: [{{name: b{version}}}]",
        )
    link = tmp_path / "current"
    link.symlink_to("1")
    read = policy_files._read

    def read_and_swap(path, **options):
        data = read(path, **options)
        link.unlink()
        link.symlink_to("2")
        return data

    monkeypatch.setattr(policy_files, "_read", read_and_swap)
    assert rules(PolicySource(link, IMAGE)) == ["a1", "b1"]


def test_files_of_a_config_map_are_shown_where_the_mount_is(tmp_path):
    mount = ConfigMapMount(tmp_path / "mount")
    mount.update(a="  rulez: []")
    with pytest.raises(PolicyInvalidError) as caught:
        PolicySource(mount.path, IMAGE)
    assert caught.value.problems[0].file == str(mount.path / "a.yaml")


def test_a_swap_that_removes_the_files_being_read_is_retried(tmp_path, monkeypatch):
    mount = ConfigMapMount(tmp_path / "mount")
    mount.update(a="  rules: [{name: a1}]")
    source = PolicySource(mount.path, IMAGE)
    mount.update(a="  rules: [{name: a2}]")

    def gone(path, **_):
        raise FileNotFoundError(2, "No such file or directory", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(policy_files, "_read", gone)
        assert source.refresh().problems
    assert rules(source) == ["a1"]
    assert source.refresh().loaded
    assert rules(source) == ["a2"]
