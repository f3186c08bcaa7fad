"""Where a store lies: its marker, the kind of file system, left-overs beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from eventlog.errors import (
    CorruptionError,
    FormatVersionError,
    NotAStoreError,
    StoreUnavailableError,
)
from eventlog.place import (
    FORMAT_VERSION,
    MARKER_FILE,
    creating_path,
    encode_marker,
    file_system_type,
    is_network_type,
    read_marker,
    refuse_network,
    sweep_leftovers,
)
from eventlog.seams import CLOCK, FILES, Clock, Files

MOUNTS = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:20 / /proc rw - proc proc rw
24 22 0:30 / /srv/nfs rw,relatime shared:7 - nfs4 server:/x rw
25 24 0:31 / /srv/nfs/local rw - xfs /dev/vdb rw
26 22 0:32 / /mnt/my\040share rw - cifs //server/share rw
27 22 0:33 / /home/me/cloud rw - fuse.rclone remote: rw
28 22 0:34 / /data rw - btrfs /dev/vdc rw
29 22 0:35 / /data rw - ceph host:/ rw
a line that says nothing
"""


class Mounted(Files):
    """The file system of this machine, with another mount table."""

    def __init__(self, mounts: str | None) -> None:
        self._mounts = mounts

    def mounts(self) -> str | None:
        return self._mounts


class Tomorrow(Clock):
    """A clock a day ahead."""

    def wall_us(self) -> int:
        return super().wall_us() + 24 * 3_600 * 1_000_000


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/store", "ext4"),
        ("/srv/nfs/store", "nfs4"),
        ("/srv/nfs", "nfs4"),
        ("/srv/nfs/local/store", "xfs"),
        ("/srv/nfsx/store", "ext4"),
        ("/mnt/my share/a/b", "cifs"),
        ("/home/me/cloud/store", "fuse.rclone"),
        ("/data/store", "ceph"),
    ],
    ids=["root", "nfs", "mount-point", "nested", "prefix", "space", "fuse", "covered"],
)
def test_the_deepest_last_mount_decides(path: str, kind: str) -> None:
    assert file_system_type(Path(path), MOUNTS) == kind


def test_an_empty_table_tells_nothing() -> None:
    assert file_system_type(Path("/x"), "") == "unknown"


@pytest.mark.parametrize(
    "kind", "nfs nfs4 cifs smb3 9p fuse fuse.sshfs fuseblk afs ceph glusterfs lustre".split()
)
def test_shared_file_systems_are_refused(tmp_path: Path, kind: str) -> None:
    assert is_network_type(kind)
    files = Mounted(f"1 0 0:1 / / rw - {kind} x rw\n")
    with pytest.raises(StoreUnavailableError, match=kind):
        refuse_network(tmp_path, files, allow=False)
    (warning,) = refuse_network(tmp_path, files, allow=True)
    assert kind in warning


@pytest.mark.parametrize("kind", "ext4 xfs btrfs tmpfs zfs f2fs apfs fusectl unknown".split())
def test_local_file_systems_are_not(tmp_path: Path, kind: str) -> None:
    assert refuse_network(tmp_path, Mounted(f"1 0 0:1 / / rw - {kind} x rw"), allow=False) == []


def test_overlays_are_warned_of_and_unknown_systems_are_not(tmp_path: Path) -> None:
    assert refuse_network(tmp_path, Mounted("1 0 0:1 / / rw - overlay x rw"), allow=False)
    assert refuse_network(tmp_path, Mounted(None), allow=False) == []


def test_the_marker_comes_back(tmp_path: Path) -> None:
    (tmp_path / MARKER_FILE).write_bytes(encode_marker({"store": "ab", "note": "é"}))
    assert read_marker(tmp_path, FILES) == {
        "format": "turnlog",
        "version": FORMAT_VERSION,
        "store": "ab",
        "note": "é",
    }


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", CorruptionError),
        (b"\xff\xfe", CorruptionError),
        (b"[" * 100_000, CorruptionError),
        (b"[]", CorruptionError),
        (b'{"format": "turnlog"}', CorruptionError),
        (b'{"format": "turnlog", "version": true}', CorruptionError),
        (b'{"format": "turnlog", "version": 0}', CorruptionError),
        (b'{"format": "other", "version": 1}', NotAStoreError),
        (b"{}", NotAStoreError),
        (
            json.dumps({"format": "turnlog", "version": FORMAT_VERSION + 1}).encode(),
            FormatVersionError,
        ),
    ],
    ids="empty bytes deep list no-version bool zero other-format no-format newer".split(),
)
def test_other_markers_are_refused(tmp_path: Path, content: bytes, error: type[Exception]) -> None:
    (tmp_path / MARKER_FILE).write_bytes(content)
    with pytest.raises(error) as caught:
        read_marker(tmp_path, FILES)
    if isinstance(caught.value, FormatVersionError):
        assert (caught.value.found, caught.value.supported) == (
            FORMAT_VERSION + 1,
            FORMAT_VERSION,
        )


def test_a_folder_without_a_marker_is_no_store(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere", Path(__file__)):
        with pytest.raises(NotAStoreError):
            read_marker(path, FILES)
    (tmp_path / MARKER_FILE).mkdir()
    with pytest.raises(NotAStoreError):
        read_marker(tmp_path, FILES)


@pytest.mark.parametrize("name", ["store", "a.b", "x" * 255, "é" * 127, "we*rd[name]"])
def test_left_overs_are_swept_by_name(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    dead = creating_path(target)
    dead.mkdir()
    (dead / "data.mdb").write_bytes(b"x")
    kept = [
        tmp_path / "others",
        tmp_path / ".others.0123456789abcdef.creating",
        dead.with_name(dead.name.replace(".creating", ".other")),
        dead.with_name(dead.name.replace(".creating", "0.creating")[-250:]),
    ]
    for path in kept:
        path.mkdir()
    link = creating_path(target)
    link.symlink_to(tmp_path / "others")
    file = creating_path(target)
    file.write_bytes(b"")
    assert sweep_leftovers(target, FILES, CLOCK) == 1
    assert not dead.exists()
    assert link.is_symlink() and file.exists() and all(path.exists() for path in kept)


def test_a_living_creator_is_left_alone_for_an_hour(tmp_path: Path) -> None:
    target = tmp_path / "store"
    alive = creating_path(target)
    alive.mkdir()
    folder = FILES.open_folder(alive)
    try:
        assert FILES.try_lock(folder)
        assert sweep_leftovers(target, FILES, CLOCK) == 0
        assert sweep_leftovers(target, FILES, Tomorrow()) == 1
    finally:
        os.close(folder)


def test_left_overs_of_any_name_are_swept_when_nobody_lives(tmp_path: Path) -> None:
    """Backups with a date in their names are never made again under the same one."""
    dead = [creating_path(tmp_path / name) for name in ("monday", "tues\nday", "store")]
    alive = creating_path(tmp_path / "wednesday")
    kept = [tmp_path / "monday", tmp_path / ".x.creating", tmp_path / "a.0123456789abcdef.creating"]
    for path in (*dead, *kept, alive):
        path.mkdir()
    folder = FILES.open_folder(alive)
    try:
        assert FILES.try_lock(folder)
        assert sweep_leftovers(tmp_path / "store", FILES, Tomorrow(), any_name=True) == 3
    finally:
        os.close(folder)
    assert all([path.exists() for path in (*kept, alive)])


def test_a_parent_that_is_gone_has_nothing_to_sweep(tmp_path: Path) -> None:
    assert sweep_leftovers(tmp_path / "gone" / "store", FILES, CLOCK) == 0
