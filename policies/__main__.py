"""The policy pack: `pulumi preview --policy-pack policies`."""

from eks_fsdp.policies.pack import policy_pack

policy_pack()
