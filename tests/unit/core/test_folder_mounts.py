"""Mounts as people type them, and what is refused before a job runs."""

from __future__ import annotations

import pytest

from shoal.core.errors import InvalidSpec
from shoal.core.folder_mounts import check_mounts, parse_mount


@pytest.mark.parametrize(
    ("text", "source", "path", "read_only"),
    [
        ("s3://bucket/images:/data", "s3://bucket/images", "/data", True),
        ("s3://bucket:/data/images/:ro", "s3://bucket", "/data/images", True),
        (
            "s3://bucket/a?endpoint=http://10.0.0.5:9000&region=eu-1:/data:ro",
            "s3://bucket/a?endpoint=http://10.0.0.5:9000&region=eu-1",
            "/data",
            True,
        ),
        ("/mnt/nas/images:/data", "/mnt/nas/images", "/data", True),
        ("/mnt/nas/out:/results:rw", "/mnt/nas/out", "/results", False),
    ],
)
def test_a_mount_names_a_source_and_a_path(text: str, source: str, path: str, read_only: bool) -> None:
    assert parse_mount(text) == (source, path, read_only)


def test_the_bucket_of_a_mount_is_that_of_every_s3_url() -> None:
    bucket = parse_mount("s3://bucket/a?endpoint=http://10.0.0.5:9000:/data").bucket
    assert bucket is not None
    assert (bucket.bucket, bucket.prefix, bucket.endpoint) == ("bucket", "a", "http://10.0.0.5:9000")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("s3://bucket/images", "not a mount"),
        ("images:/data", "not a mount"),
        ("s3://bucket:/data:rwx", "not a mount"),
        ("s3://bucket/out:/data:rw", "can only be read"),
        ("s3://bucket:/input/x", "/input is taken"),
        ("s3://bucket:/etc", "/etc is taken"),
        ("s3://bucket:/data/../etc", "not a path"),
        ("/:/data", "whole path"),
        ("/mnt/../etc:/data", "whole path"),
    ],
)
def test_what_cannot_be_mounted_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        check_mounts([text])
    assert words in refused.value.message


def test_mounts_inside_each_other_are_refused() -> None:
    with pytest.raises(InvalidSpec):
        check_mounts(["s3://bucket/a:/data", "/mnt/b:/data/b"])
    assert len(check_mounts(["s3://bucket/a:/data", "/mnt/b:/data2"])) == 2


@pytest.mark.parametrize("text", ["s3://KEY:SECRET@bucket:/data", "s3://bucket?key=1:/data"])
def test_keys_never_stand_in_a_mount(text: str) -> None:
    with pytest.raises(InvalidSpec):
        check_mounts([text])
