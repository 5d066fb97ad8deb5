from __future__ import annotations

import io
import tarfile

import pytest

from deploy import oci

LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def test_an_archive_has_its_files_in_order_of_one_time_and_nobodys():
    made = oci.pack({"b/c": b"2", "a": b"1"}, 1000)
    assert made == oci.pack({"a": b"1", "b/c": b"2"}, 1000)
    with tarfile.open(fileobj=io.BytesIO(made)) as archive:
        entries = [(item.name, item.mode, item.mtime, item.uid, item.uname) for item in archive]
    assert entries == [("a", 0o644, 1000, 0, ""), ("b/c", 0o644, 1000, 0, "")]


def test_what_a_later_layer_replaces_counts_as_that_layer_has_it(tmp_path):
    layers = [{"etc/os": b"old", "lib/x/y": b"1", "etc/a/b": b"1"}, {"etc/os": b"new"}]
    stored = [
        oci._write_blob(tmp_path, LAYER, oci.compress(oci.pack(layer, 0))) for layer in layers
    ]
    found = oci._write_blob(tmp_path, oci.MANIFEST, oci._encode_json({"layers": stored}))
    (tmp_path / "index.json").write_bytes(oci._encode_json({"manifests": [found]}))
    assert oci.files(tmp_path, ["etc/*", "lib/*/y"]) == {"etc/os": "new", "lib/x/y": "1"}


def test_a_layout_of_several_manifests_is_none_of_ours(tmp_path):
    (tmp_path / "index.json").write_text('{"manifests": [{}, {}]}')
    with pytest.raises(oci.OCIError, match="has 2 manifests where one is wanted"):
        oci.digest(tmp_path)
