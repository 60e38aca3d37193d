"""The grammar of S3 URLs, which every place that takes one shares."""

import pytest

from shoal.core.errors import InvalidSpec
from shoal.core.s3_url import parse_s3_url


def test_bucket_prefix_endpoint_and_region_are_read() -> None:
    found = parse_s3_url("s3://bucket/a/b/?endpoint=http://10.0.0.5:9000/&region=eu-west-1")
    assert found == ("bucket", "a/b", "http://10.0.0.5:9000", "eu-west-1")
    assert found.display_url == "s3://bucket/a/b" and parse_s3_url("s3://bucket").display_url == "s3://bucket"
    assert found.options == {"endpoint": "http://10.0.0.5:9000", "region": "eu-west-1"}


def test_a_pattern_may_contain_question_marks() -> None:
    found = parse_s3_url("s3://bucket/set/part-?.jsonl?endpoint=https://minio.local", is_pattern=True)
    assert (found.prefix, found.endpoint) == ("set/part-?.jsonl", "https://minio.local")


@pytest.mark.parametrize(
    "url",
    [
        "gs://bucket/x", "s3://", "s3:///x", "s3://b", "s3://user:key@bucket/x", "s3://bucket/x?secret=1", "s3://bucket?x",
        "s3://bucket/x?endpoint=minio", "s3://bucket/x?endpoint=http://a:b@c", "s3://bucket/x?endpoint=file:///etc",
        "s3://bucket/x?region=EU WEST", "s3://bucket/x?endpoint=",
    ],
)  # fmt: skip
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(InvalidSpec):
        parse_s3_url(url)
