from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from cir_utils.device import resolve_device
from cir_utils.errors import InputError
from cir_utils.files import (
    read_json,
    sha256_file,
    sha256_text,
    verify_manifest,
    write_atomic,
    write_json_atomic,
    write_manifest,
)


def test_input_error_is_a_value_error_on_one_line():
    error = InputError("first line\n  second line")
    assert isinstance(error, ValueError)
    assert str(error) == "first line second line"


def test_write_atomic_writes_text_and_bytes_and_leaves_nothing_else(tmp_path):
    write_atomic(tmp_path / "deep" / "a.txt", "é\n")
    write_atomic(tmp_path / "deep" / "a.txt", b"second")
    assert (tmp_path / "deep" / "a.txt").read_bytes() == b"second"
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["a.txt"]


def test_write_atomic_gives_ordinary_permissions(tmp_path):
    (tmp_path / "plain").write_text("x")
    write_atomic(tmp_path / "atomic", "x")
    assert os.stat(tmp_path / "atomic").st_mode == os.stat(tmp_path / "plain").st_mode


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    write_json_atomic(path, {"old": 1})
    with pytest.raises(ValueError):
        write_json_atomic(path, {"new": float("nan")})
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "\ud800")
    assert json.loads(path.read_text()) == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_concurrent_writers_leave_one_whole_file(tmp_path):
    path = tmp_path / "a"
    contents = [bytes([65 + i]) * 100_000 for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda content: write_atomic(path, content), contents))
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_sha256(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_file(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()
    assert sha256_text("é") == hashlib.sha256("é".encode()).hexdigest()
    assert len(sha256_text("\ud800")) == 64


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"a": 1, "a": 2}', "'a' occurs twice"),
        (b"[" * 200_000, "nested too deeply"),
    ],
)
def test_read_json_says_what_is_wrong(tmp_path, content, expected):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=expected) as caught:
        read_json(path, "annotation file")
    assert str(path) in str(caught.value)


def test_read_json_tolerates_a_byte_order_mark_and_names_a_missing_file(tmp_path):
    (tmp_path / "x.json").write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(tmp_path / "x.json") == [1]
    with pytest.raises(InputError, match="does not exist"):
        read_json(tmp_path / "none.json")
    with pytest.raises(InputError, match="is a folder"):
        read_json(tmp_path)


def test_manifest_accepts_what_it_describes_and_names_what_changed(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b c.bin").write_bytes(b"b")
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / ".hidden").write_text("not listed")
    write_manifest(tmp_path)
    assert verify_manifest(tmp_path) == ["a.txt", "sub/b c.bin"]
    (tmp_path / "sub" / "b c.bin").write_bytes(b"B")
    with pytest.raises(InputError, match=r"b c\.bin is damaged .*reinstall cir_utils"):
        verify_manifest(tmp_path)
    (tmp_path / "sub" / "b c.bin").unlink()
    with pytest.raises(InputError, match=r"b c\.bin is missing; .*git checkout"):
        verify_manifest(tmp_path)


def test_manifest_is_in_the_format_of_sha256sum(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a")
    digest = hashlib.sha256(b"a").hexdigest()
    assert write_manifest(tmp_path).read_text() == f"{digest}  a.txt\n"
    (tmp_path / "SHA256SUMS").write_text(f"{digest} *a.txt\n")  # the binary mark
    assert verify_manifest(tmp_path) == ["a.txt"]


@pytest.mark.parametrize(
    "content", ["", "nonsense\n", "0" * 64 + "  ../outside\n", "0" * 64 + "  /etc/passwd\n"]
)
def test_a_bad_manifest_is_an_error(tmp_path, content):
    (tmp_path / "SHA256SUMS").write_text(content)
    with pytest.raises(InputError, match="SHA256SUMS"):
        verify_manifest(tmp_path)


def test_a_missing_manifest_is_an_error(tmp_path):
    with pytest.raises(InputError, match="missing or unreadable"):
        verify_manifest(tmp_path)


def test_device_names(monkeypatch):
    assert resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(InputError, match="choose auto, cpu, cuda"):
        resolve_device("gpu")
    with pytest.raises(InputError, match="unknown"):
        resolve_device("cuda:x")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(InputError, match="no CUDA device.*--device cpu"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == torch.device("cuda:0")
    assert resolve_device("cuda") == torch.device("cuda:0")
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(InputError, match="cuda:0 to cuda:1"):
        resolve_device("cuda:2")
