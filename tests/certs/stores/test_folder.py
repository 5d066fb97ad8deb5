import os
import shutil
import ssl
import stat
import threading
from dataclasses import replace
from datetime import timedelta
from itertools import count

import pytest
from cryptography.hazmat.primitives import serialization

from certs import (
    Bundle,
    CertificatesError,
    SetAction,
    advance,
    describe,
    ensure,
    load_into,
    problems,
    read,
    stamp,
)
from certs.stores import folder as folder_store
from certs.stores import swap
from tests.certs.handshakes import DAY, NAMES, put, real_now, shake_hands, tree, versions

NOW = real_now().replace(microsecond=0)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_an_empty_folder_becomes_one_that_serves(tmp_path):
    folder = tmp_path / "deep" / "tls"
    outcome = ensure(folder, NAMES, NOW)
    assert (outcome.action, outcome.bundle) == (SetAction.ISSUED, read(folder))
    shake_hands(folder, (folder / "ca.crt").read_bytes(), "127.0.0.1")
    assert describe(read(folder), NOW, NAMES).problems == ()


def test_the_folder_has_the_layout_of_a_mounted_secret(tmp_path):
    ensure(tmp_path, NAMES, NOW)
    for name in ("tls.crt", "tls.key", "ca.crt", "ca.key"):
        assert str((tmp_path / name).readlink()) == f"..data/{name}"
    assert (tmp_path / "..data").readlink().name == versions(tmp_path)[0].name


def test_keys_are_private_even_where_the_mask_allows_everything(tmp_path, monkeypatch):
    folder = tmp_path / "new"
    seen = []
    opened = os.open

    def watching(path, flags, permissions=0o777, **more):
        descriptor = opened(path, flags, permissions, **more)
        if str(path).endswith(".key"):
            seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    monkeypatch.setattr(swap.os, "open", watching)
    before = os.umask(0)
    try:
        ensure(folder, NAMES, NOW)
        ensure(folder, NAMES, NOW + 300 * DAY)
    finally:
        os.umask(before)
    assert mode(folder) == 0o700
    assert [mode(folder / name) for name in ("tls.key", "ca.key")] == [0o600, 0o600]
    # Empty files at the moment of opening: nobody else could have opened them before.
    assert seen == [0o600] * 4


def test_a_folder_that_exists_keeps_its_mode(tmp_path):
    tmp_path.chmod(0o755)
    ensure(tmp_path, NAMES, NOW)
    assert mode(tmp_path) == 0o755


def test_nothing_is_written_while_nothing_is_due(tmp_path, monkeypatch):
    ensure(tmp_path, NAMES, NOW)
    before, stamped = tree(tmp_path), stamp(tmp_path)
    monkeypatch.setattr(swap.os, "open", lambda *_: pytest.fail("a kept set was opened to write"))
    assert ensure(tmp_path, NAMES, NOW + 200 * DAY).action is SetAction.KEPT
    assert (tree(tmp_path), stamp(tmp_path)) == (before, stamped)


def test_a_renewal_changes_the_stamp_and_leaves_no_old_version(tmp_path):
    ensure(tmp_path, NAMES, NOW)
    stamped, first = stamp(tmp_path), read(tmp_path)
    assert ensure(tmp_path, NAMES, NOW + 300 * DAY).action is SetAction.RENEWED
    assert stamp(tmp_path) != stamped
    assert len(versions(tmp_path)) == 1
    assert read(tmp_path).ca_pem == first.ca_pem


def test_a_reader_never_sees_a_certificate_with_the_key_of_another(tmp_path):
    ensure(tmp_path, NAMES, NOW)
    failures, rounds, done = [], [], threading.Event()

    def keep_reading():
        while not done.is_set():
            try:
                load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tmp_path)
                failures.extend(problems(read(tmp_path), NOW + timedelta(seconds=1)))
                rounds.append(1)
            except CertificatesError as error:
                failures.append(str(error))

    reader = threading.Thread(target=keep_reading)
    reader.start()
    try:
        for number in count():
            assert ensure(tmp_path, [f"n{number}.svc"], NOW).action is SetAction.RENEWED
            if number > 50 and len(rounds) > 5:
                break
    finally:
        done.set()
        reader.join(60)
    assert failures == []


def test_a_swap_in_the_middle_of_reading_is_read_again(tmp_path, monkeypatch):
    ensure(tmp_path, NAMES, NOW)
    reading, swaps = folder_store._content, iter(["n1.svc", "n2.svc"])

    def swap_after_the_first_file(path):
        content = reading(path)
        if path.name == "tls.crt" and (name := next(swaps, None)):
            with monkeypatch.context() as patch:
                patch.setattr(folder_store, "_content", reading)
                ensure(tmp_path, [name], NOW)
        return content

    monkeypatch.setattr(folder_store, "_content", swap_after_the_first_file)
    assert problems(read(tmp_path), NOW, ["n1.svc", "n2.svc"]) == ()
    swaps = (f"m{number}.svc" for number in range(99))
    with pytest.raises(CertificatesError, match="changes faster"):
        read(tmp_path)


def test_plain_files_of_ours_are_renewed_and_become_links(tmp_path):
    put(tmp_path, advance(Bundle(), NAMES, NOW).bundle)
    assert ensure(tmp_path, NAMES, NOW).action is SetAction.KEPT
    assert not (tmp_path / "tls.crt").is_symlink()
    assert ensure(tmp_path, NAMES, NOW + 300 * DAY).action is SetAction.RENEWED
    assert (tmp_path / "tls.crt").is_symlink()
    assert problems(read(tmp_path), NOW + 300 * DAY, NAMES) == ()


def test_a_brought_certificate_is_never_overwritten(tmp_path):
    put(tmp_path, replace(advance(Bundle(), NAMES, NOW).bundle, ca_key_pem=b""))
    before = tree(tmp_path)
    for when in (NOW, NOW + 300 * DAY, NOW + 9000 * DAY):
        outcome = ensure(tmp_path, ["new.gpu.svc"], when)
        assert (outcome.action, outcome.own) == (SetAction.KEPT, False)
        assert any("not valid for new.gpu.svc" in problem for problem in outcome.problems)
        assert tree(tmp_path) == before


def test_a_certificate_copied_over_ours_is_what_counts_and_is_kept(tmp_path):
    ensure(tmp_path / "ours", NAMES, NOW)
    theirs = advance(Bundle(), NAMES, NOW).bundle
    for name in ("tls.crt", "tls.key"):
        (tmp_path / "ours" / name).unlink()
        (tmp_path / "ours" / name).write_bytes(theirs.files()[name])
    before = tree(tmp_path / "ours")
    outcome = ensure(tmp_path / "ours", NAMES, NOW + 300 * DAY)
    assert (outcome.action, outcome.own) == (SetAction.KEPT, False)
    assert outcome.bundle.certificate_pem == theirs.certificate_pem
    assert tree(tmp_path / "ours") == before


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt", "ca.key"])
@pytest.mark.parametrize("content", [b"junk", b"", "cut"])
def test_a_broken_file_is_an_error_with_its_path_and_is_left_alone(tmp_path, name, content):
    ensure(tmp_path, NAMES, NOW)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2] if content == "cut" else content)
    before = tree(tmp_path)
    if (name, content) == ("ca.key", b""):
        # Without its key the set is one somebody brought.
        assert ensure(tmp_path, NAMES, NOW + 300 * DAY).own is False
    else:
        with pytest.raises(CertificatesError) as raised:
            ensure(tmp_path, NAMES, NOW + 300 * DAY)
        assert raised.value.where == str(tmp_path / name)
        assert describe(read(tmp_path), NOW).problems
    assert tree(tmp_path) == before


def test_a_file_that_cannot_be_read_is_an_error_with_its_path(tmp_path):
    (tmp_path / "tls.key").mkdir()
    with pytest.raises(CertificatesError, match=r"tls\.key: cannot be read \(Is a directory\)"):
        ensure(tmp_path, NAMES, NOW)


def test_a_lost_version_is_an_error_and_not_an_empty_folder(tmp_path):
    ensure(tmp_path, NAMES, NOW)
    shutil.rmtree(versions(tmp_path)[0])
    with pytest.raises(CertificatesError, match=r"\.\.data: points to nothing"):
        ensure(tmp_path, NAMES, NOW)


def test_a_folder_that_cannot_be_written_is_an_error_with_its_path(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CertificatesError, match="cannot be"):
        ensure(tmp_path / "file", NAMES, NOW)
    with pytest.raises(CertificatesError, match=r"cannot be (read|written)"):
        ensure(tmp_path / "file" / "below", NAMES, NOW)


def test_loading_from_an_empty_or_unusable_folder_says_so(tmp_path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(CertificatesError, match="holds no certificate"):
        load_into(context, tmp_path)
    assert stamp(tmp_path) == ()
    fit, other = (advance(Bundle(), NAMES, NOW).bundle for _ in range(2))
    put(tmp_path, replace(fit, key_pem=other.key_pem))
    with pytest.raises(CertificatesError, match="cannot be used"):
        load_into(context, tmp_path)


def test_an_encrypted_key_is_rejected_without_asking_at_the_terminal(tmp_path):
    bundle = advance(Bundle(), NAMES, NOW).bundle
    locked = serialization.load_pem_private_key(bundle.key_pem, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    put(tmp_path, replace(bundle, key_pem=locked))
    with pytest.raises(CertificatesError, match="cannot be used"):
        load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tmp_path)
