"""Images in Amazon ECR: what an address says, and whether the image is there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import boto3

_ECR = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr(-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?/(?P<repository>[a-z0-9._/-]+)"
)


@dataclass(frozen=True)
class Address:
    """An image's address in parts."""

    repository: str
    """With its registry, without tag and digest."""
    tag: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, uri: str) -> Address:
        """``repository:tag``, ``repository@sha256:...`` or both."""
        name, _, digest = uri.partition("@")
        head, colon, tag = name.rpartition(":")
        # The colon of a registry's port is no tag's.
        if not colon or "/" in tag:
            head, tag = name, ""
        return cls(head, tag, digest)

    @property
    def identifier(self) -> dict[str, str]:
        """As ECR's API wants it; the digest wins."""
        return {"imageDigest": self.digest} if self.digest else {"imageTag": self.tag}

    @property
    def version(self) -> str:
        """What follows the repository."""
        return f"@{self.digest}" if self.digest else f":{self.tag}"


@dataclass(frozen=True)
class Presence:
    """Whether an image is in its registry."""

    found: bool | None
    """None: it cannot be told, as the registry is not ECR or did not let us look."""
    message: str
    """What was seen, in one line."""
    digest: str = ""
    """Of the image that was found."""
    remedy: str = ""
    """What to do where it was not."""


def present(session: boto3.Session, uri: str) -> Presence:
    """Look for an image, read-only. Never raises for what AWS answers."""
    address = Address.parse(uri)
    place = _ECR.fullmatch(address.repository)
    if place is None:
        return Presence(None, f"{address.repository} is not a private ECR repository: not looked at")
    client: Any = session.client("ecr", region_name=place["region"])
    return image_present(client, place["repository"], address, registry=place["account"])


def image_present(ecr: Any, repository: str, address: Address, registry: str | None = None) -> Presence:
    """The same with a boto3 client of ECR and the repository's name; ``registry``: account id, None: the caller's own."""
    from botocore.exceptions import BotoCoreError, ClientError

    where = {"registryId": registry} if registry else {}
    try:
        answer = ecr.describe_images(repositoryName=repository, imageIds=[address.identifier], **where)
    except ClientError as error:
        code, text = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
        if code == "RepositoryNotFoundException":
            return Presence(False, f"repository {repository} does not exist", remedy="pulumi up makes it")
        if code == "ImageNotFoundException":
            remedy = "eks-fsdp image build, then set the image.digest that it prints"
            return Presence(False, f"{repository}{address.version} is not in the registry", remedy=remedy)
        return Presence(None, f"ECR did not answer for {repository}: {code}: {text}", remedy="allow ecr:DescribeImages")
    except BotoCoreError as error:
        return Presence(
            None, f"ECR did not answer for {repository}: {error}", remedy="AWS credentials and a way to ECR"
        )
    details = answer["imageDetails"]
    if not details:
        return Presence(False, f"{repository}{address.version} is not in the registry", remedy="eks-fsdp image build")
    return Presence(True, f"{repository}{address.version} is there", digest=str(details[0]["imageDigest"]))
