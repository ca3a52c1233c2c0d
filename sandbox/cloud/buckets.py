"""S3 buckets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from .kinds import Call, Context, Kind, Update, is_gone, tag_list


def _bucket(context: Context) -> str:
    return str(context.inputs["bucket"])


def _location(context: Context) -> Any:
    # The oldest region is the one that may not be named.
    return None if context.region == "us-east-1" else {"LocationConstraint": context.region}


def _read_bucket(context: Context) -> Mapping[str, Any] | None:
    try:
        context.client.head_bucket(Bucket=context.id)
    except ClientError as error:
        if error.response["Error"]["Code"] == "404":
            return None
        raise
    try:
        tags = context.client.get_bucket_tagging(Bucket=context.id)["TagSet"]
    except ClientError:
        tags = []
    return {"Bucket": context.id, "Tags": {tag["Key"]: tag["Value"] for tag in tags}}


def _tag_bucket(context: Context, add: Mapping[str, str], remove: list[str]) -> None:
    _put_tags(context)


def _put_tags(context: Context) -> None:
    context.client.put_bucket_tagging(Bucket=context.id, Tagging={"TagSet": tag_list(context.tags)})


def _empty(context: Context) -> None:
    if not context.state.get("forceDestroy"):
        return
    for item in context.client.list_objects_v2(Bucket=context.id).get("Contents", []):
        context.client.delete_object(Bucket=context.id, Key=item["Key"])


def _names(context: Context, described: Mapping[str, Any]) -> dict[str, str]:
    return {
        "bucketDomainName": f"{context.id}.s3.amazonaws.com",
        "bucketRegionalDomainName": f"{context.id}.s3.{context.region}.amazonaws.com",
        "arn": f"arn:aws:s3:::{context.id}",
    }


BUCKET = Kind(
    token="aws:s3/bucket:Bucket",
    service="s3",
    create=Call("create_bucket", {"Bucket": "bucket", "CreateBucketConfiguration": _location}),
    id=_bucket,
    read=_read_bucket,
    observed={"bucket": "Bucket", "tags": "Tags"},
    computed=_names,
    computed_names=("bucketDomainName", "bucketRegionalDomainName", "arn"),
    delete=Call("delete_bucket", {"Bucket": lambda context: context.id}),
    before_delete=(_empty,),
    updates=(Update(("tags",), _put_tags, at_creation=True),),
    replaces=frozenset({"bucket"}),
    ignored=frozenset({"forceDestroy"}),
    auto_name="bucket",
    name_limit=63,
    tagged=_tag_bucket,
)

_BLOCKS = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")


def _block(context: Context) -> dict[str, bool]:
    return {f"{name[:1].upper()}{name[1:]}": bool(context.inputs.get(name)) for name in _BLOCKS}


_PUT_BLOCK = Call("put_public_access_block", {"Bucket": "bucket", "PublicAccessBlockConfiguration": _block})


def _reader(operation: str, result: str) -> Any:
    def read(context: Context) -> Mapping[str, Any] | None:
        try:
            answer = getattr(context.client, operation)(Bucket=context.id)[result]
        except ClientError as error:
            if is_gone(error):
                return None
            raise
        return answer if isinstance(answer, Mapping) else {result: answer}

    return read


PUBLIC_ACCESS = Kind(
    token="aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
    service="s3",
    create=_PUT_BLOCK,
    id=_bucket,
    read=_reader("get_public_access_block", "PublicAccessBlockConfiguration"),
    observed={name: f"{name[:1].upper()}{name[1:]}" for name in _BLOCKS},
    delete=Call("delete_public_access_block", {"Bucket": lambda context: context.id}),
    updates=(Update(_BLOCKS, _PUT_BLOCK),),
    replaces=frozenset({"bucket"}),
)

_RULE_NAMES = {
    "rules.id": "ID",
    "rules.abortIncompleteMultipartUpload.daysAfterInitiation": "DaysAfterInitiation",
}
_PUT_LIFECYCLE = Call(
    "put_bucket_lifecycle_configuration", {"Bucket": "bucket", "LifecycleConfiguration.Rules": "rules"}
)

LIFECYCLE = Kind(
    token="aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
    service="s3",
    create=_PUT_LIFECYCLE,
    id=_bucket,
    read=_reader("get_bucket_lifecycle_configuration", "Rules"),
    delete=Call("delete_bucket_lifecycle", {"Bucket": lambda context: context.id}),
    updates=(Update(("rules",), _PUT_LIFECYCLE),),
    replaces=frozenset({"bucket"}),
    names=_RULE_NAMES,
)

KINDS = (BUCKET, PUBLIC_ACCESS, LIFECYCLE)
