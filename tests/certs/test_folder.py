import os
import ssl
import stat
import threading
from dataclasses import replace
from itertools import count

import pytest
from cryptography.hazmat.primitives import serialization

from certs import (
    Bundle,
    CertificatesError,
    advance,
    find_problems,
    folder,
    issue_into_folder,
    load_into,
    read_folder,
    stamp,
)
from tests.certs.handshakes import NAMES, mount, put, real_now, shake_hands

NOW = real_now().replace(microsecond=0)
FILES = ("tls.crt", "tls.key", "ca.crt", "ca.key")


def fresh(*names):
    return advance(Bundle(), names or NAMES, NOW).bundle


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_set_in_a_new_folder_can_be_served(tmp_path):
    made = issue_into_folder(tmp_path / "deep" / "tls", NAMES, NOW)
    assert read_folder(tmp_path / "deep" / "tls") == made
    assert find_problems(made, NOW) == ()
    shake_hands(made, made.ca_pem, "127.0.0.1")


def test_files_are_private_from_the_start_with_any_umask(tmp_path, monkeypatch):
    seen = []
    opened = os.open

    def watching(path, *arguments):
        descriptor = opened(path, *arguments)
        seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    monkeypatch.setattr(folder.os, "open", watching)
    before = os.umask(0)
    try:
        issue_into_folder(tmp_path / "new", NAMES, NOW)
    finally:
        os.umask(before)
    assert mode(tmp_path / "new") == 0o700
    assert seen == [mode(tmp_path / "new" / name) for name in FILES] == [0o600] * 4


def test_a_folder_that_exists_keeps_its_mode(tmp_path):
    tmp_path.chmod(0o755)
    issue_into_folder(tmp_path, NAMES, NOW)
    assert mode(tmp_path) == 0o755


@pytest.mark.parametrize("name", FILES)
def test_no_file_is_overwritten_or_added(tmp_path, name):
    (tmp_path / name).symlink_to("nowhere")
    with pytest.raises(CertificatesError, match=f"holds {name} already; name another folder"):
        issue_into_folder(tmp_path, NAMES, NOW)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_that_cannot_be_used_is_an_error_with_its_path(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CertificatesError, match=f"{path}: cannot be written"):
            issue_into_folder(path, NAMES, NOW)
        with pytest.raises(CertificatesError, match=r"cannot be read \(Not a directory\)"):
            read_folder(path)
    (tmp_path / "tls.key").mkdir()
    with pytest.raises(CertificatesError, match=r"tls\.key: cannot be read \(Is a directory\)"):
        read_folder(tmp_path)


def test_an_absent_folder_and_plain_files_are_read(tmp_path):
    assert read_folder(tmp_path / "absent") == read_folder(tmp_path) == Bundle()
    brought = replace(fresh(), ca_key_pem=b"")
    put(tmp_path, brought)
    assert read_folder(tmp_path) == brought


def test_another_version_changes_the_stamp(tmp_path):
    assert stamp(tmp_path) == ()
    first, second = fresh(), fresh()
    mount(tmp_path, first, "1")
    before = stamp(tmp_path)
    assert (read_folder(tmp_path), stamp(tmp_path)) == (first, before)
    mount(tmp_path, second, "2")
    assert read_folder(tmp_path) == second
    assert stamp(tmp_path) not in (before, ())


def test_a_reader_never_gets_a_certificate_with_the_key_of_another(tmp_path):
    sets = [fresh(), fresh()]
    mount(tmp_path, sets[0], "0")
    failures, rounds, done = [], [], threading.Event()

    def keep_reading():
        while not done.is_set():
            try:
                found = read_folder(tmp_path)
                load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), found)
                failures.extend([] if found in sets else ["a mixture"])
                rounds.append(1)
            except CertificatesError as error:
                failures.append(str(error))

    reader = threading.Thread(target=keep_reading)
    reader.start()
    try:
        for number in count(1):
            mount(tmp_path, sets[number % 2], str(number))
            if number > 50 and len(rounds) > 5:
                break
    finally:
        done.set()
        reader.join(60)
    assert failures == []


def test_a_version_that_changes_during_reading_is_read_again(tmp_path, monkeypatch):
    sets = [fresh() for _ in range(3)]
    mount(tmp_path, sets[0], "0")
    reading, swaps = folder._read_file, iter([1, 2])

    def swap_after_the_first_file(path):
        content = reading(path)
        if path.name == "tls.crt" and (number := next(swaps, None)):
            mount(tmp_path, sets[number % 3], str(number))
        return content

    monkeypatch.setattr(folder, "_read_file", swap_after_the_first_file)
    assert read_folder(tmp_path) == sets[2]
    swaps = iter(range(3, 99))
    with pytest.raises(CertificatesError, match="changes faster"):
        read_folder(tmp_path)


def encrypted(key_pem):
    key = serialization.load_pem_private_key(key_pem, None)
    secret = serialization.BestAvailableEncryption(b"secret")
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, secret)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda item: replace(item, certificate_pem=b"", key_pem=b""), ": holds no certificate"),
        (lambda item: replace(item, certificate_pem=b"x"), ", tls.crt: is not a readable PEM"),
        (lambda item: replace(item, key_pem=b""), ", tls.key: is empty or missing"),
        (lambda item: replace(item, key_pem=fresh().key_pem), ": .* cannot be used (.*MISMATCH"),
        # The error must come without a password prompt at the terminal.
        (lambda item: replace(item, key_pem=encrypted(item.key_pem)), ", tls.key: is encrypted"),
    ],
    ids=["nothing", "junk", "no key", "another key", "an encrypted key"],
)
def test_an_unusable_set_is_an_error(change, said):
    with pytest.raises(CertificatesError, match=f"^the folder{said}".replace("(", r"\(")):
        load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), change(fresh()), "the folder")
