"""The policy pack's rules, as the engine asks them: what each refuses, and what it lets pass."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pulumi.runtime.rpc import UNKNOWN as UNKNOWN_TEXT
from pulumi_policy import (
    PolicyResource,
    PolicyResourceOptions,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy.proxy import unknown_checking_proxy

from eks_fsdp.policies.pack import RULES, policies
from eks_fsdp.policies.tokens import found_in

ROOT = Path(__file__).parents[2]
POLICIES = {policy.name: policy for policy in policies()}
OPTIONS: Any = PolicyResourceOptions.__new__(PolicyResourceOptions)
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
GROUP = "aws:ec2/securityGroup:SecurityGroup"
INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
EGRESS = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
NODES = "aws:eks/nodeGroup:NodeGroup"
JOB = "kubernetes:kubeflow.org/v1:PyTorchJob"


def refusals(rule: str, kind: str, props: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> list[str]:
    """What a rule on one resource reports."""
    policy, found = POLICIES[rule], list[str]()
    assert isinstance(policy, ResourceValidationPolicy)
    args = ResourceValidationArgs(kind, unknown_checking_proxy(dict(props)), "urn", "it", OPTIONS, None, config)
    policy.validate(args, lambda message, urn=None: found.append(message))
    return found


def resource(
    kind: str, name: str, props: Mapping[str, Any], depends: Mapping[str, list[PolicyResource]] | None = None
) -> PolicyResource:
    """One resource of a stack."""
    return PolicyResource(
        kind, unknown_checking_proxy(dict(props)), f"urn::{name}", name, OPTIONS, None, None, [], dict(depends or {})
    )


def stack_refusals(rule: str, *resources: PolicyResource) -> list[str]:
    """What a rule on a stack reports."""
    policy, found = POLICIES[rule], list[str]()
    assert isinstance(policy, StackValidationPolicy)
    policy.validate(StackValidationArgs(list(resources)), lambda message, urn=None: found.append(f"{urn} {message}"))
    return found


def pod(**container: Any) -> dict[str, Any]:
    return {"containers": [{"name": "a", **container}]}


def job(spec: Mapping[str, Any]) -> dict[str, Any]:
    template = {"spec": dict(spec)}
    return {"metadata": {"name": "j"}, "spec": {"pytorchReplicaSpecs": {"Worker": {"template": template}}}}


def deployment(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "d"}, "spec": {"template": {"spec": dict(spec)}}}


DEPLOYMENT = "kubernetes:apps/v1:Deployment"
TAGS = {"eksfsdp:owner": "me", "eksfsdp:expiry": "never"}
ENCRYPTED_ROOT = {"blockDeviceMappings": [{"ebs": {"encrypted": "true"}}]}
TOKEN = "hf_" + "a1B2c3D4e5" * 3
KEY_ID = "AKIA" + "ABCDEFGHIJKLMNOP"
GLOO = pod(image="i:1", env=[{"name": "EKS_FSDP_TRANSPORT", "value": "gloo"}])


@pytest.mark.parametrize(
    ("rule", "kind", "props", "words"),
    [
        (
            "no-public-address",
            TEMPLATE,
            {"networkInterfaces": [{}, {"associatePublicIpAddress": "true"}]},
            "networkInterfaces[1]",
        ),
        ("no-public-address", "aws:ec2/instance:Instance", {"associatePublicIpAddress": True}, "is true"),
        ("no-public-address", "aws:ec2/subnet:Subnet", {"mapPublicIpOnLaunch": True}, "mapPublicIpOnLaunch"),
        ("not-open-to-the-world", INGRESS, {"cidrIpv4": "0.0.0.0/0"}, "whole internet"),
        ("not-open-to-the-world", INGRESS, {"cidrIpv6": "::/0"}, "cidrIpv6"),
        ("not-open-to-the-world", INGRESS, {"cidrIpv4": "128.0.0.0/1"}, "whole internet"),
        ("not-open-to-the-world", GROUP, {"ingress": [{"cidrBlocks": ["10.0.0.0/8", "0.0.0.0/0"]}]}, "ingress[0]"),
        (
            "not-open-to-the-world",
            "aws:ec2/securityGroupRule:SecurityGroupRule",
            {"type": "ingress", "ipv6CidrBlocks": ["::/0"]},
            "ipv6CidrBlocks",
        ),
        ("imdsv2", TEMPLATE, {}, "'optional'"),
        ("imdsv2", TEMPLATE, {"metadataOptions": {"httpTokens": "optional"}}, "accepted: 'required'"),
        ("imdsv2", NODES, {"amiType": "AL2_x86_64_GPU"}, "IMDSv1 open"),
        ("encrypted", TEMPLATE, {}, "blockDeviceMappings is not set"),
        ("encrypted", TEMPLATE, {"blockDeviceMappings": [{"ebs": {"volumeSize": 9}}]}, "[0].ebs.encrypted"),
        ("encrypted", NODES, {"amiType": "AL2023_x86_64_STANDARD"}, "launchTemplate is not set"),
        ("encrypted", "aws:ebs/volume:Volume", {"size": 1}, "encrypted is not true"),
        ("encrypted", "aws:efs/fileSystem:FileSystem", {}, "encrypted is not true"),
        ("encrypted", "aws:ecr/repository:Repository", {}, "encryptionConfigurations"),
        ("encrypted", "aws:eks/cluster:Cluster", {"version": "1.27"}, "1.28"),
        (
            "encrypted",
            "kubernetes:storage.k8s.io/v1:StorageClass",
            {"provisioner": "ebs.csi.aws.com", "parameters": {"type": "gp3"}},
            "parameters.encrypted",
        ),
        ("pinned-images", DEPLOYMENT, deployment(pod(image="nginx")), "containers[0].image 'nginx'"),
        ("pinned-images", DEPLOYMENT, deployment(pod(image="host:5000/nginx")), "no fixed version"),
        ("pinned-images", JOB, job(pod(image="host/a:latest")), "spec.pytorchReplicaSpecs.Worker.template.spec"),
        (
            "pinned-images",
            "kubernetes:batch/v1:CronJob",
            {"spec": {"jobTemplate": {"spec": {"template": {"spec": pod(image="a:latest")}}}}},
            "jobTemplate",
        ),
        (
            "pinned-images",
            "kubernetes:core/v1:Pod",
            {"spec": {**pod(image="a:1"), "initContainers": [{"image": "b"}]}},
            "initContainers[0]",
        ),
        ("pinned-images", NODES, {"launchTemplate": {"id": "lt-1", "version": "$Latest"}}, "$Latest"),
        ("owner-and-expiry", NODES, {"tags": {"eksfsdp:owner": "me"}}, "eksfsdp:expiry is missing"),
        ("owner-and-expiry", NODES, {"tags": {**TAGS, "eksfsdp:owner": "unowned"}}, "'unowned'"),
        ("owner-and-expiry", NODES, {"tags": {"eksfsdp:expiry": "never"}}, "eksfsdp:owner is None"),
        (
            "no-tokens",
            JOB,
            job(pod(env=[{"name": "HF_TOKEN", "value": TOKEN}])),
            "containers[0].env[0].value holds a Hugging",
        ),
        ("no-tokens", JOB, job(pod(command=["sh", "-c", f"login {TOKEN}"])), "command[2]"),
        ("no-tokens", "kubernetes:core/v1:ConfigMap", {"data": {"a.ini": f"key={KEY_ID}"}}, "an AWS access key"),
        ("no-tokens", TEMPLATE, {"userData": base64.b64encode(f"#!/bin/sh\nT={TOKEN}".encode()).decode()}, "userData"),
        ("no-tokens", "aws:ssm/parameter:Parameter", {"value": "ghp_" + "a" * 36}, "a GitHub token"),
        ("no-tokens", "any:thing:At", {"x": ["-----BEGIN RSA PRIVATE KEY-----\nMII"]}, "x[0] holds a private key"),
        ("no-load-balancer", "kubernetes:core/v1:Service", {"spec": {"type": "LoadBalancer"}}, "ClusterIP"),
        ("no-load-balancer", "kubernetes:networking.k8s.io/v1:Ingress", {"metadata": {"name": "a"}}, "load balancer"),
        ("no-gloo", JOB, job(GLOO), "accepted: efa, tcp"),
    ],
)
def test_what_is_refused(rule: str, kind: str, props: dict[str, Any], words: str) -> None:
    (message,) = refusals(rule, kind, props)
    assert words in message
    assert message.startswith("it: ")
    assert "accepted" in message


@pytest.mark.parametrize(
    ("rule", "kind", "props"),
    [
        ("no-public-address", TEMPLATE, {"networkInterfaces": [{"associatePublicIpAddress": "false"}]}),
        ("no-public-address", TEMPLATE, {"networkInterfaces": UNKNOWN_TEXT}),
        ("not-open-to-the-world", EGRESS, {"cidrIpv4": "0.0.0.0/0"}),
        ("not-open-to-the-world", INGRESS, {"cidrIpv4": "10.0.0.0/8"}),
        ("not-open-to-the-world", INGRESS, {"cidrIpv4": UNKNOWN_TEXT}),
        ("imdsv2", TEMPLATE, {"metadataOptions": {"httpTokens": "required"}}),
        ("imdsv2", TEMPLATE, {"metadataOptions": UNKNOWN_TEXT}),
        ("imdsv2", NODES, {"amiType": "AL2023_x86_64_STANDARD"}),
        ("encrypted", TEMPLATE, ENCRYPTED_ROOT),
        ("encrypted", NODES, {"launchTemplate": {"id": "lt-1", "version": "1"}}),
        ("encrypted", TEMPLATE, {"blockDeviceMappings": UNKNOWN_TEXT}),
        ("encrypted", "aws:ecr/repository:Repository", {"encryptionConfigurations": [{"encryptionType": "AES256"}]}),
        ("encrypted", "aws:eks/cluster:Cluster", {"version": "1.34"}),
        ("encrypted", "aws:eks/cluster:Cluster", {"version": "1.27", "encryptionConfig": {"resources": ["secrets"]}}),
        ("pinned-images", DEPLOYMENT, deployment(pod(image="host:5000/a/b:1.2"))),
        ("pinned-images", DEPLOYMENT, deployment(pod(image="a@sha256:" + "0" * 64))),
        ("pinned-images", DEPLOYMENT, deployment(pod(image=UNKNOWN_TEXT))),
        ("owner-and-expiry", NODES, {"tags": TAGS}),
        ("owner-and-expiry", NODES, {"tags": UNKNOWN_TEXT}),
        ("no-tokens", "kubernetes:core/v1:Secret", {"stringData": {"token": TOKEN}}),
        ("no-tokens", "aws:secretsmanager/secretVersion:SecretVersion", {"secretString": TOKEN}),
        ("no-tokens", JOB, job(pod(image="a/hf_transfer:1", env=[{"name": "HF_TOKEN", "valueFrom": {}}]))),
        ("no-load-balancer", "kubernetes:core/v1:Service", {"spec": {"type": "ClusterIP"}}),
        ("no-gloo", JOB, job(pod(env=[{"name": "EKS_FSDP_TRANSPORT", "value": "efa"}]))),
    ],
)
def test_what_passes(rule: str, kind: str, props: dict[str, Any]) -> None:
    assert refusals(rule, kind, props) == []


def test_what_a_rule_is_told_to_let_pass() -> None:
    service = {"metadata": {"namespace": "web", "name": "front"}, "spec": {"type": "LoadBalancer"}}
    balancer = "kubernetes:core/v1:Service"
    assert refusals("no-load-balancer", balancer, service, {"allowed": ["web/front"]}) == []
    assert refusals("no-load-balancer", balancer, service, {"allowed": ["front"]})
    sandbox = json.loads((ROOT / "policies" / "sandbox.json").read_text())
    assert refusals("no-gloo", JOB, job(GLOO), sandbox["no-gloo"]) == []
    for name, config in sandbox.items():
        assert set(config) <= set(POLICIES[name].config_schema.properties)


def test_a_token_in_a_secret_of_the_wrong_kind_is_told() -> None:
    assert refusals("no-tokens", "kubernetes:core/v1:Secret", {"metadata": {"annotations": {"a": TOKEN}}})


@pytest.mark.parametrize("text", ["hf_transfer", "AKIA", "a sentence about ghp_ tokens", "sha256:" + "a" * 64])
def test_words_that_look_like_tokens_are_none(text: str) -> None:
    assert found_in(text) is None


def security_group(**more: Any) -> PolicyResource:
    return resource(GROUP, "efa", {"arn": "arn:aws:ec2:r:1:security-group/sg-efa", **more})


def rules(group: PolicyResource, *directions: str, known: bool = True) -> list[PolicyResource]:
    """Rules of a group that name the group itself."""
    value = "sg-efa" if known else UNKNOWN_TEXT
    both = {"securityGroupId": [group], "referencedSecurityGroupId": [group]}
    props = {"securityGroupId": value, "referencedSecurityGroupId": value, "ipProtocol": "-1"}
    kinds = {"in": INGRESS, "out": EGRESS}
    return [resource(kinds[direction], direction, props, both) for direction in directions]


def template(*groups: list[str], depends: list[PolicyResource] | None = None, kind: str = "efa") -> PolicyResource:
    interfaces = [{"interfaceType": kind, "securityGroups": carried} for carried in groups]
    return resource(
        TEMPLATE,
        "lt",
        {"networkInterfaces": interfaces, "arn": "arn:a:ec2:r:1:launch-template/lt-1", "instanceType": "p5.48xlarge"},
        {"networkInterfaces": depends or []},
    )


CLUSTER = resource("aws:eks/cluster:Cluster", "c", {"vpcConfig": {"clusterSecurityGroupId": "sg-cluster"}})
EFA = "efa-group-open-to-itself"


def test_efa_interfaces_carry_a_group_that_is_open_to_itself() -> None:
    group = security_group()
    both = rules(group, "in", "out")
    assert not stack_refusals(EFA, CLUSTER, group, *both, template(["sg-cluster", "sg-efa"], ["sg-efa"]))
    for lacking in (rules(group, "in"), rules(group, "out"), []):
        (told,) = stack_refusals(EFA, CLUSTER, group, *lacking, template(["sg-cluster", "sg-efa"]))
        assert told.startswith("urn::lt lt: networkInterfaces[0]")
    (told,) = stack_refusals(EFA, CLUSTER, group, *both, template(["sg-efa"], ["sg-cluster"]))
    assert "networkInterfaces[1]" in told
    assert not stack_refusals(EFA, CLUSTER, template(["sg-cluster"], kind="interface"))
    assert not stack_refusals(EFA, CLUSTER, template(["sg-cluster", "sg-users-own"])), "cannot be looked into from here"
    assert stack_refusals(EFA, CLUSTER, template([]))


def test_a_rule_for_the_whole_internet_is_none_for_efa() -> None:
    group = security_group(egress=[{"protocol": "-1", "cidrBlocks": ["0.0.0.0/0"]}])
    assert stack_refusals(EFA, group, *rules(group, "in"), template(["sg-efa"]))
    tcp = resource(
        EGRESS, "o", {"securityGroupId": "sg-efa", "referencedSecurityGroupId": "sg-efa", "ipProtocol": "tcp"}
    )
    assert stack_refusals(EFA, group, *rules(group, "in"), tcp, template(["sg-efa"]))


def test_other_ways_to_write_the_rules() -> None:
    itself = {"protocol": "-1", "self": True}
    assert not stack_refusals(EFA, security_group(ingress=[itself], egress=[itself]), template(["sg-efa"]))
    classic = [
        resource(
            "aws:ec2/securityGroupRule:SecurityGroupRule",
            direction,
            {"type": direction, "self": True, "protocol": "-1", "securityGroupId": "sg-efa"},
        )
        for direction in ("ingress", "egress")
    ]
    assert not stack_refusals(EFA, security_group(), *classic, template(["sg-efa"]))


def test_a_preview_knows_groups_by_where_they_come_from() -> None:
    group = resource(GROUP, "efa", {"arn": UNKNOWN_TEXT})
    unknown = [UNKNOWN_TEXT, UNKNOWN_TEXT]
    both = rules(group, "in", "out", known=False)
    assert not stack_refusals(EFA, group, *both, template(unknown, depends=[CLUSTER, group]))
    assert stack_refusals(EFA, group, *rules(group, "in", known=False), template(unknown, depends=[CLUSTER, group]))
    assert stack_refusals(EFA, group, *both, template(unknown, depends=[CLUSTER]))


def requesting(*names: str) -> dict[str, Any]:
    amounts = dict.fromkeys(names, "8")
    return pod(image="a:1", resources={"requests": amounts, "limits": amounts})


GPU, EFA_DEVICE = "nvidia.com/gpu", "vpc.amazonaws.com/efa"
ASKS = "gpu-pods-ask-for-efa"


def test_gpu_pods_ask_for_efa_where_the_node_has_it() -> None:
    with_efa = template(["sg-1"])
    group = resource(
        NODES,
        "p5",
        {"launchTemplate": {"id": "lt-1"}, "labels": {"eksfsdp/gpu-group": "p5"}},
        {"launchTemplate": [with_efa]},
    )
    here = {"nodeSelector": {"eksfsdp/gpu-group": "p5"}}

    def asked(spec: dict[str, Any], **selector: Any) -> list[str]:
        return stack_refusals(ASKS, with_efa, group, resource(JOB, "job", job({**spec, **selector})))

    assert asked(requesting(GPU, EFA_DEVICE), **here) == []
    (told,) = asked(requesting(GPU), **here)
    assert told.startswith("urn::job job: spec.pytorchReplicaSpecs.Worker.template.spec asks for nvidia.com/gpu")
    assert "nodes of p5" in told
    assert asked(requesting(GPU)), "it may run there"
    assert asked(requesting(GPU), nodeSelector={"node.kubernetes.io/instance-type": "p5.48xlarge"})
    assert asked(requesting(GPU), nodeSelector={"eksfsdp/gpu-group": "g5"}) == []
    assert asked(requesting(GPU), nodeSelector={"node.kubernetes.io/instance-type": "g5.2xlarge"}) == []
    assert asked(requesting("cpu"), **here) == []
    without = template(["sg-1"], kind="interface")
    assert stack_refusals(ASKS, without, group, resource(JOB, "job", job(requesting(GPU)))) == []


def test_a_job_on_somebody_elses_cluster_that_wants_efa_asks_for_it() -> None:
    wants = requesting(GPU)
    wants["containers"][0]["env"] = [{"name": "FI_PROVIDER", "value": "efa"}]
    assert "FI_PROVIDER" in stack_refusals(ASKS, resource(JOB, "job", job(wants)))[0]


def test_every_rule_is_mandatory_described_and_refuses_something_here() -> None:
    text = Path(__file__).read_text()
    for rule in RULES:
        policy = POLICIES[rule.name]
        assert policy.enforcement_level is None, "the pack's own level"
        assert policy.description.endswith((".", "out."))
        assert text.count(f'"{rule.name}"') >= 1, f"{rule.name}: no test"
