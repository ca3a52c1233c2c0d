"""The sandbox's part of the EBS CSI driver: which claims it serves, and what it asks of the account."""

from __future__ import annotations

from typing import Any

from eks_fsdp.components import etcd
from eks_fsdp.sandbox.ebs_provisioner import (
    SELECTED_NODE,
    is_released,
    is_wanted,
    persistent_volume,
    volume_request,
)

CLASS = etcd.storage_class({"eksfsdp:owner": "a=b"})
CLASSES = {CLASS["metadata"]["name"]: CLASS}


def claim(node: str = "", **status: Any) -> dict[str, Any]:
    made = etcd.data_claim(9)
    made["metadata"] |= {"uid": "1-2", "annotations": {SELECTED_NODE: node} if node else {}}
    return {**made, "status": {"phase": "Pending", **status}}


def test_a_claim_is_served_once_its_node_is_known() -> None:
    assert not is_wanted(claim(), CLASSES)
    assert is_wanted(claim("node"), CLASSES)
    assert not is_wanted(claim("node", phase="Bound"), CLASSES)
    assert not is_wanted(claim("node"), {})
    other = {**CLASS, "provisioner": "efs.csi.aws.com"}
    assert not is_wanted(claim("node"), {CLASS["metadata"]["name"]: other})


def test_a_volume_has_the_size_the_encryption_and_the_tags_of_its_class() -> None:
    request = volume_request(claim("node"), CLASS, "us-west-2a", "c")
    assert (request["Size"], request["VolumeType"], request["Encrypted"]) == (9, "gp3", True)
    tags = {tag["Key"]: tag["Value"] for tag in request["TagSpecifications"][0]["Tags"]}
    assert tags["eksfsdp:owner"] == "a=b"
    assert tags["CSIVolumeName"] == "pvc-1-2"


def test_a_volume_is_deleted_when_its_claim_is_gone_and_the_class_says_so() -> None:
    made = persistent_volume(claim("node"), CLASS, "us-west-2a", {"Size": 9, "VolumeId": "vol-1"})
    assert made["spec"]["claimRef"]["uid"] == "1-2"
    assert not is_released({**made, "status": {"phase": "Bound"}})
    assert is_released({**made, "status": {"phase": "Released"}})
    kept = persistent_volume(claim("node"), {**CLASS, "reclaimPolicy": "Retain"}, "z", {"Size": 9, "VolumeId": "v"})
    assert not is_released({**kept, "status": {"phase": "Released"}})
