"""Types that several settings share."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, Field

from eks_fsdp.spec.base import Strict
from eks_fsdp.spec.subnets import is_zone_id

Name = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,30}[a-z0-9])?$")]
"""A DNS label of at most 32 characters: it becomes part of Kubernetes and AWS names."""

LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
Labels = dict[
    Annotated[str, Field(max_length=63, pattern=LABEL_KEY)],
    Annotated[str, Field(max_length=63, pattern=LABEL_VALUE)],
]
"""Kubernetes labels that EKS takes too: it counts a key's prefix among its 63 characters."""

Tags = dict[
    Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[\p{L}\p{Z}\p{N}_.:/=+\-@]+$")],
    Annotated[str, Field(max_length=256, pattern=r"^[\p{L}\p{Z}\p{N}_.:/=+\-@]*$")],
]
"""AWS tags."""

AccountId = Annotated[str, Field(pattern=r"^\d{12}$")]
Arn = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:[a-z0-9-]+:[a-z0-9-]*:(\d{12})?:.+$")]
PrincipalArn = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:iam::\d{12}:(role|user)/.+$")]
"""An IAM role or user; the session of an assumed role (``arn:aws:sts:...``) is neither."""
KmsKeyArn = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/.+$")]
SubnetId = Annotated[str, Field(pattern=r"^subnet-[0-9a-f]{8,17}$")]
SecurityGroupId = Annotated[str, Field(pattern=r"^sg-[0-9a-f]{8,17}$")]
ReservationId = Annotated[str, Field(pattern=r"^cr-[0-9a-f]{8,17}$")]
Zone = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d[a-z]$|^[a-z]{3,5}\d-az\d+$")]
"""Name of an availability zone (``us-west-2a``), which differs from account to account, or its id (``usw2-az1``), which does not."""
Moment = Annotated[AwareDatetime, AfterValidator(lambda moment: moment.replace(microsecond=0))]
"""A point in time with its zone, such as ``2027-01-31T18:00:00Z``."""

_RESERVED_DOMAIN = re.compile(r"(^|\.)(kubernetes\.io|k8s\.io|eks\.amazonaws\.com)/")


def refuse_own_tags(tags: Tags) -> None:
    """Raises `ValueError` for a tag that is AWS' or the program's own."""
    for key in tags:
        if key.lower().startswith(("aws:", "eksfsdp:")) or key == "Name":
            raise ValueError(
                f"tags: {key!r} is set by {'AWS' if key.lower().startswith('aws:') else 'the program'}; accepted: other keys"
            )


def refuse_reserved(labels: Labels) -> None:
    """Raises `ValueError` for a label that no kubelet may give its node: the nodes would start, and never join."""
    for key in labels:
        if _RESERVED_DOMAIN.search(key):
            raise ValueError(
                f"labels: {key!r} is reserved, and nodes with it never join; accepted: a domain of your own"
            )


class PartSettings(Strict):
    """One part of the platform inside the cluster."""

    mode: Literal["install", "existing", "none"] = "install"
    """``existing``: it is there already and is used; ``none``: it is neither installed nor used."""


__all__ = [
    "AccountId",
    "Arn",
    "KmsKeyArn",
    "Labels",
    "Moment",
    "Name",
    "PartSettings",
    "ReservationId",
    "SecurityGroupId",
    "SubnetId",
    "Tags",
    "Zone",
    "is_zone_id",
    "refuse_reserved",
]
