"""Downloads resume, verify and rename, whatever the server does; the registry is right; the laptop set is
what it says. All against a local server: nothing here reaches the network.
"""

import hashlib
import io
import json
import zipfile

import numpy as np
import pytest
import requests
from file_server import serving
from PIL import Image

from cir_utils.benchmarks import load_benchmark
from cir_utils.errors import InputError
from cir_utils.files import verify_manifest
from cir_utils.layouts.circo import IMAGE_LIST, IMAGES, LAPTOP_LIST, file_name
from data_scripts import check_data, fetch_data
from data_scripts.check_data import PUBLISHED
from data_scripts.fetch_data import (
    FetchFailed,
    Gone,
    Remote,
    Source,
    check_picture,
    fetch_file,
    load_registry,
)

CONTENT = np.random.default_rng(0).bytes(300_000)
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(fetch_data, "TIMEOUT", (2.0, 0.3))
    monkeypatch.setattr(fetch_data, "PAUSE", 0.0)
    monkeypatch.setattr(fetch_data, "CHUNK", 500)  # the places of the cuts are multiples of it
    monkeypatch.setattr("time.sleep", lambda _: None)  # pooch's own pause
    with serving() as one:
        one.files["a/data.bin"] = CONTENT
        yield one


@pytest.fixture
def session():
    with requests.Session() as one:
        one.trust_env = False  # no proxy of this machine
        yield one


def remote(server, **changes):
    given = {"path": "in/data.bin", "url": server.address + "a/data.bin", "size": len(CONTENT), "sha256": SHA}
    return Remote(**(given | changes))


def left(folder):
    """Every file below, hidden ones too."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_file_is_fetched_once_and_kept(server, session, tmp_path):
    for _ in range(2):
        path = fetch_file(remote(server), tmp_path, session)
        assert path == tmp_path / "in/data.bin" and path.read_bytes() == CONTENT
    assert left(tmp_path) == ["in/data.bin"]
    assert server.ranges("a/data.bin") == [None]  # the second call asked for nothing
    assert server.log[0][1]["Accept-Encoding"] == "identity"  # lengths and ranges count the file's own bytes


@pytest.mark.parametrize("known", [True, False])
def test_cut_download_goes_on_where_it_stopped(server, session, tmp_path, known):
    server.plans["a/data.bin"] = ["cut:100000", "cut:50000"]
    wanted = remote(server) if known else remote(server, size=None, sha256=None)
    assert fetch_file(wanted, tmp_path, session).read_bytes() == CONTENT
    assert server.ranges("a/data.bin") == [None, "bytes=100000-", "bytes=150000-"]
    assert left(tmp_path) == ["in/data.bin"]


def test_download_goes_on_in_a_later_run(server, session, tmp_path):
    server.plans["a/data.bin"] = ["cut:100000"] + ["503"] * fetch_data.ATTEMPTS
    with pytest.raises(FetchFailed, match="503.*goes on after the 100,000 bytes"):
        fetch_file(remote(server), tmp_path, session)
    assert not (tmp_path / "in/data.bin").exists() and "in/.data.bin.part" in left(tmp_path)
    assert fetch_file(remote(server), tmp_path, session).read_bytes() == CONTENT
    assert server.ranges("a/data.bin")[-1] == "bytes=100000-"
    assert left(tmp_path) == ["in/data.bin"]


def test_many_cuts_do_not_end_a_download_that_makes_progress(server, session, tmp_path):
    server.plans["a/data.bin"] = ["cut:20000"] * (2 * fetch_data.ATTEMPTS)
    assert fetch_file(remote(server), tmp_path, session).read_bytes() == CONTENT


def test_part_of_another_version_is_not_mixed_in(server, session, tmp_path):
    old, wanted = server.files["a/data.bin"], remote(server, size=None, sha256=None)
    server.files["a/data.bin"] = bytes(len(old))
    server.plans["a/data.bin"] = ["cut:100000"] + ["503"] * fetch_data.ATTEMPTS
    with pytest.raises(FetchFailed):
        fetch_file(wanted, tmp_path, session)
    server.files["a/data.bin"] = CONTENT
    assert fetch_file(wanted, tmp_path, session).read_bytes() == CONTENT
    assert "If-Range" in server.log[-1][1]


def test_server_without_ranges_starts_over(server, session, tmp_path):
    server.plans["a/data.bin"] = ["cut:100000", "no-range"]
    assert fetch_file(remote(server), tmp_path, session).read_bytes() == CONTENT


def test_part_that_was_whole_already_is_used(server, session, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/.data.bin.part").write_bytes(CONTENT)
    assert fetch_file(remote(server, size=None), tmp_path, session).read_bytes() == CONTENT
    assert server.ranges("a/data.bin") == [f"bytes={len(CONTENT)}-"]  # answered 416: nothing more


def test_part_that_is_too_long_is_thrown_away(server, session, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/.data.bin.part").write_bytes(CONTENT + b"more")
    assert fetch_file(remote(server, size=None), tmp_path, session).read_bytes() == CONTENT
    assert fetch_file(remote(server, path="b/data.bin"), tmp_path, session).read_bytes() == CONTENT


def test_corrupt_download_is_done_once_more(server, session, tmp_path):
    server.plans["a/data.bin"] = ["corrupt"]
    assert fetch_file(remote(server), tmp_path, session).read_bytes() == CONTENT
    assert server.ranges("a/data.bin") == [None, None]


@pytest.mark.parametrize("order", ["corrupt", "html"])
def test_wrong_content_never_gets_the_name(server, session, tmp_path, order):
    server.plans["a/data.bin"] = [order] * 2
    with pytest.raises(Gone, match=f"{SHA}.*something else twice"):
        fetch_file(remote(server), tmp_path, session)
    assert left(tmp_path) == []


def test_wrong_old_file_is_replaced_and_stays_until_then(server, session, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/data.bin").write_bytes(b"old")
    server.plans["a/data.bin"] = ["404"]
    with pytest.raises(Gone):
        fetch_file(remote(server), tmp_path, session)
    assert (tmp_path / "in/data.bin").read_bytes() == b"old"
    assert fetch_file(remote(server), tmp_path, session).read_bytes() == CONTENT


def test_redirects_are_followed_and_circles_are_named(server, session, tmp_path):
    server.plans["elsewhere"] = ["redirect:a/data.bin"]
    wanted = remote(server, url=server.address + "elsewhere")
    assert fetch_file(wanted, tmp_path, session).read_bytes() == CONTENT
    server.plans["circle"] = ["redirect:circle"] * 1000
    with pytest.raises(FetchFailed, match="redirects in a circle"):
        fetch_file(remote(server, url=server.address + "circle", path="c"), tmp_path, session)


def test_silence_is_waited_for_a_while_and_then_named(server, session, tmp_path, monkeypatch):
    server.plans["a/data.bin"] = ["stall"]
    assert fetch_file(remote(server), tmp_path, session).read_bytes() == CONTENT
    monkeypatch.setattr(fetch_data, "ATTEMPTS", 2)
    server.plans["a/data.bin"] = ["stall"] * 2
    with pytest.raises(FetchFailed, match=r"no answer in time \(2 attempts\); run the same command again"):
        fetch_file(remote(server, path="other.bin"), tmp_path, session)
    assert left(tmp_path) == ["in/data.bin"]


def test_no_connection_is_one_line_without_objects(server, session, tmp_path):
    with pytest.raises(FetchFailed) as caught:
        fetch_file(remote(server, url="http://127.0.0.1:9/data.bin"), tmp_path, session)
    assert "no connection" in str(caught.value) and "object at" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_refusal_ends_at_once_and_overload_does_not(server, session, tmp_path):
    with pytest.raises(Gone, match="404"):
        fetch_file(remote(server, url=server.address + "nothing"), tmp_path, session)
    assert len(server.log) == 1
    server.plans["a/data.bin"] = ["503", "429"]
    assert fetch_file(remote(server), tmp_path, session).read_bytes() == CONTENT
    assert len(server.log) == 4


def picture(seed, size=96):
    pixels = np.random.default_rng(seed).integers(0, 255, (size, size, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=60)
    return buffer.getvalue()


@pytest.mark.parametrize("order, said", [("html", "HTML"), ("no-length:2000", "damaged or incomplete")])
def test_picture_without_a_hash_must_be_whole(server, session, tmp_path, order, said):
    server.files["p.jpg"] = picture(1)
    wanted = Remote("p.jpg", server.address + "p.jpg")
    server.plans["p.jpg"] = [order] * 2
    with pytest.raises(Gone, match=f"{server.address}p.jpg.*{said}"):
        fetch_file(wanted, tmp_path, session, check_picture)
    assert left(tmp_path) == []
    (tmp_path / "p.jpg").write_bytes(b"")  # what a failed download of others left behind
    assert fetch_file(wanted, tmp_path, session, check_picture).read_bytes() == picture(1)


# --- registry ---------------------------------------------------------------------------------------


def test_registry_states_every_hash_or_why_there_is_none():
    registry = load_registry()
    for source in registry.values():
        assert source.source and source.licence and source.credit and source.benchmark in PUBLISHED
        assert bool(source.ask) != bool(source.files)
        for file in source.files:
            assert file.url.startswith(("https://", "http://images.cocodataset.org/"))
            assert not file.path.startswith("/") and ".." not in file.path
            if file.sha256:
                assert len(file.sha256) == 64 and file.size and not file.unknown
                assert file.url.startswith("https://raw.githubusercontent.com/")  # at a commit
            else:
                assert file.unknown and file.verified
    assert {s.benchmark for s in registry.values()} == {"circo", "cirr", "fashioniq"}


def test_registry_agrees_with_the_published_files(real_annotations):
    registry, compared = load_registry(), 0
    for name in ("circo", "cirr", "fashioniq"):
        for file in registry[f"{name}-annotations"].files:
            path = real_annotations / name / file.path.removeprefix("cirr/")
            content = path.read_bytes()
            assert (len(content), hashlib.sha256(content).hexdigest()) == (file.size, file.sha256), path
            assert file.url.endswith("/" + file.path.removeprefix("cirr/"))
            compared += 1
    assert compared == 15


def test_list_of_sets_names_licence_and_unknown_hashes(capsys):
    assert fetch_data.main([]) == 0
    said = capsys.readouterr().out
    assert "CC BY-NC 4.0" in said and "COCO publishes" in said
    assert all(name in said for name in load_registry())


@pytest.mark.parametrize(
    "name, said",
    [
        ("cirr-images", "goo.gl/forms/yS29stWnFWzrDBFH3"),
        ("fashioniq-images", "hongwang600/fashion-iq-metadata"),
    ],
)
def test_licence_bound_images_are_asked_for_and_then_checked(tmp_path, capsys, monkeypatch, name, said):
    monkeypatch.setattr(requests.Session, "get", lambda *_, **__: pytest.fail("fetched"))
    assert fetch_data.main([name, "--root", str(tmp_path)]) == 2
    out = capsys.readouterr().out
    assert said in out and f"{tmp_path}/" in out and "unusable" in out


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["cirr"], "choose circo-annotations, cirr-annotations"),
        (["circo-laptop"], "give --root"),
        (["circo-laptop", "--root", "x", "--distractors", "-1"], "0 or more"),
    ],
)
def test_wrong_usage_is_one_line(capsys, arguments, said):
    assert fetch_data.main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


# --- sets -------------------------------------------------------------------------------------------

IDS = list(range(1000, 1040))
QUERIES = [
    {
        "reference_img_id": 1000 + i,
        "target_img_id": 1010 + i,
        "relative_caption": "is red",
        "shared_concept": "a cup",
        "gt_img_ids": [1010 + i, 1020],
        "id": i,
    }
    for i in range(3)
]
NEEDED = {1000, 1001, 1002, 1010, 1011, 1012, 1020}


def zipped(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def coco(server, monkeypatch):
    """A small CIRCO and COCO on the server, the registry pointing there."""
    annotations = json.dumps(QUERIES).encode()
    server.files["val.json"] = annotations
    server.files["info.zip"] = zipped(
        {f"annotations/{IMAGE_LIST.name}": json.dumps({"images": [{"id": i} for i in IDS]})}
    )
    for i in IDS:
        server.files[f"one/{file_name(i)}"] = picture(i)
    server.files["all.zip"] = zipped(
        {"unlabeled2017/": b"", "../evil.jpg": b"x"}
        | {f"unlabeled2017/{file_name(i)}": picture(i) for i in IDS}
    )
    sha = hashlib.sha256(annotations).hexdigest()

    def source(name, *files):
        return Source(name, "circo", "here", "free", "us", 1000, "", files)

    info = Remote("downloads/info.zip", server.address + "info.zip")
    registry = {
        "circo-annotations": source(
            "circo-annotations",
            Remote("annotations/val.json", server.address + "val.json", len(annotations), sha),
        ),
        "circo-laptop": source(
            "circo-laptop", info, Remote(f"{IMAGES}/{{image}}", server.address + "one/{image}")
        ),
        "coco-unlabeled": source(
            "coco-unlabeled", info, Remote("downloads/all.zip", server.address + "all.zip")
        ),
    }
    monkeypatch.setattr(fetch_data, "load_registry", lambda: registry)
    monkeypatch.setitem(check_data.PUBLISHED, "circo", {"val": {"": (3, 40)}, "test": {}})
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return server


def laptop(root, *more):
    return fetch_data.main(["circo-laptop", "--root", str(root), "--distractors", "12", *more])


def chosen(root):
    return json.loads((root / LAPTOP_LIST).read_text("utf-8"))


def test_laptop_set_holds_what_the_queries_need_and_a_sample(coco, tmp_path, capsys):
    root = tmp_path / "new" / "circo"
    assert laptop(root) == 0
    record = chosen(root)
    assert NEEDED < set(record["image_ids"]) and len(record["image_ids"]) == 7 + 12 == len(
        set(record["image_ids"])
    )
    assert record["distractors"] == 12 and record["not_to_be_had"] == []
    pictures = root / IMAGES
    assert sorted(path.name for path in pictures.iterdir()) == [file_name(i) for i in record["image_ids"]]
    assert all((pictures / file_name(i)).read_bytes() == picture(i) for i in record["image_ids"])
    assert len(verify_manifest(root)) == 19
    assert record["bytes"] == sum(path.stat().st_size for path in pictures.iterdir())
    assert "=> complete" in capsys.readouterr().out
    loaded = load_benchmark("circo", "val", root)
    assert list(loaded.gallery) == record["image_ids"] and len(loaded.queries) == 3
    assert loaded.protocol.gallery == "laptop set of CIRCO val (seed 0, 12 distractors)"
    assert loaded.protocol.gallery_size == 19

    before = len(coco.log)
    assert laptop(root) == 0 and len(coco.log) == before  # all there: nothing was asked for
    assert laptop(tmp_path / "again") == 0 and chosen(tmp_path / "again") == record
    assert laptop(tmp_path / "other", "--seed", "1") == 0
    assert chosen(tmp_path / "other")["image_ids"] != record["image_ids"]


def test_smaller_sample_is_part_of_the_larger():
    many = fetch_data.choose_distractors(IDS, sorted(NEEDED), 20, seed=3)
    assert fetch_data.choose_distractors(IDS[::-1], sorted(NEEDED), 5, seed=3) == many[:5]
    assert not set(many) & NEEDED and len(set(many)) == 20
    assert len(fetch_data.choose_distractors(IDS, sorted(NEEDED), 1000, seed=3)) == 33


def test_laptop_set_survives_a_cut_and_goes_on(coco, tmp_path):
    name = f"one/{file_name(1011)}"
    coco.plans[name] = ["cut:500"] + ["503"] * fetch_data.ATTEMPTS
    assert laptop(tmp_path) == 1  # said on one line; nothing claims to be whole
    assert not (tmp_path / LAPTOP_LIST).exists()
    assert laptop(tmp_path) == 0
    assert coco.ranges(name)[-1] == "bytes=500-"
    assert coco.ranges(f"one/{file_name(1000)}") == [None]


def test_distractor_that_is_gone_is_left_out_and_told(coco, tmp_path):
    first = fetch_data.choose_distractors(IDS, sorted(NEEDED), 1, seed=0)[0]
    coco.plans[f"one/{file_name(first)}"] = ["404"]
    assert laptop(tmp_path) == 0
    record = chosen(tmp_path)
    assert record["not_to_be_had"] == [first] and first not in record["image_ids"]
    assert record["distractors"] == 11 and record["distractors_asked_for"] == 12


def test_needed_picture_that_is_gone_makes_the_set_incomplete(coco, tmp_path, capsys):
    coco.plans[f"one/{file_name(1010)}"] = ["html"] * 2
    assert laptop(tmp_path) == 3
    out = capsys.readouterr().out
    assert f"missing: {IMAGES}/{file_name(1010)} (target)" in out
    assert "1 of 3 queries lack a picture" in out


def test_laptop_set_stays_below_its_size(coco, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch_data, "MOST_BYTES", 9 * len(picture(1000)))
    assert laptop(tmp_path) == 0
    record = chosen(tmp_path)
    assert NEEDED <= set(record["image_ids"]) and 1 <= record["distractors"] < 4
    assert record["bytes"] < 11 * len(picture(1000))


def test_broken_server_ends_the_run_instead_of_an_empty_set(coco, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fetch_data, "MOST_GONE", 2)
    for i in IDS:
        coco.plans[f"one/{file_name(i)}"] = ["html"] * 2
    assert laptop(tmp_path) == 1
    assert "3 pictures are not to be had" in capsys.readouterr().err


def test_laptop_set_keeps_out_of_the_full_folder(coco, tmp_path, capsys):
    (tmp_path / IMAGE_LIST).parent.mkdir(parents=True)
    (tmp_path / IMAGE_LIST).write_text("{}")
    assert laptop(tmp_path) == 2
    assert "folder of its own" in capsys.readouterr().err


def test_full_coco_is_unpacked_verified_and_its_archive_removed(coco, tmp_path, capsys):
    arguments = ["coco-unlabeled", "--root", str(tmp_path)]
    assert fetch_data.main(arguments) == 0
    assert "=> complete" in capsys.readouterr().out
    pictures = tmp_path / IMAGES
    assert sorted(path.name for path in pictures.iterdir()) == [file_name(i) for i in IDS]
    assert (pictures / file_name(1007)).read_bytes() == picture(1007)
    assert left(tmp_path / "downloads") == ["info.zip"] and not list(tmp_path.rglob("evil.jpg"))
    assert len(load_benchmark("circo", "val", tmp_path).gallery) == 40
    before = len(coco.log)
    assert fetch_data.main(arguments) == 0 and len(coco.log) == before
    (pictures / file_name(1007)).unlink()  # one is gone: the archive is needed again
    assert fetch_data.main(arguments) == 0 and coco.ranges("all.zip") == [None, None]


def test_damaged_archive_is_thrown_away(coco, tmp_path, capsys):
    whole = coco.files["all.zip"]
    middle = whole.index(picture(1020)) + 500
    coco.files["all.zip"] = whole[:middle] + b"????" + whole[middle + 4 :]
    assert fetch_data.main(["coco-unlabeled", "--root", str(tmp_path)]) == 1
    assert "damaged (Bad CRC-32" in capsys.readouterr().err
    assert not (tmp_path / "downloads/all.zip").exists() and not (tmp_path / IMAGE_LIST).exists()
    assert not (tmp_path / IMAGES / file_name(1020)).exists()
    coco.files["all.zip"] = whole
    assert fetch_data.main(["coco-unlabeled", "--root", str(tmp_path)]) == 0


def test_small_disk_is_told_before_the_download(coco, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10})())
    assert fetch_data.main(["coco-unlabeled", "--root", str(tmp_path)]) == 2
    assert "GB free" in capsys.readouterr().err and coco.ranges("all.zip") == []


def test_short_image_list_is_refused(coco, session, tmp_path):
    coco.files["info.zip"] = zipped({f"a/{IMAGE_LIST.name}": json.dumps({"images": [{"id": 1}]})})
    listing = Remote("info.zip", coco.address + "info.zip")
    with pytest.raises(InputError, match="lists 1 images where 40 are published"):
        fetch_data._coco_ids(listing, tmp_path, session)
