"""The instance catalogue: what the program must know of each GPU instance type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EfaLayout = Literal["auto", "classic", "efa-only-dense", "none"]
"""How the EFA interfaces are laid out; see `InstanceType.interfaces`."""
PREFIX_ADDRESSES = 16
"""Addresses of one /28, which vpc-cni puts in the place of one address where prefix delegation is on."""
MANY_VCPUS = 30
"""Above as many, EKS lets a managed node have 250 pods, not 110."""


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One network interface of an instance."""

    card: int
    device: int
    kind: Literal["interface", "efa", "efa-only"]
    """``efa``: EFA and an IP address; ``efa-only``: takes no address of the subnet."""


_CPU_RESERVED = ((1, 60), (1, 10), (2, 5), (10**6, 2.5))
"""CPUs, and the thousandths of each that the kubelet reserves on EKS (amazon-eks-ami, nodeadm's kubelet configuration)."""
_RESERVED_MIB, _RESERVED_MIB_PER_POD, _EVICTION_MIB = 255, 11, 100
"""Memory that the same configuration reserves: so much, so much for each pod that the type's first card has addresses for
without prefixes, whatever the kubelet's limit of pods is, and the threshold below which pods are evicted."""
_USABLE_MEMORY = 0.974
"""Of the instance's memory, what its system reports as its own; the rest is the kernel's page tables and the firmware's. The
lower one of those that follow from what was seen on p4de (0.9738) and p5 (0.9764) nodes."""
_EFA_PAGES_PER_CPU, _EFA_PAGES_LEAST = 110, 5128
"""Huge pages of 2 MiB that the EFA installer sets aside. p4de and p5 nodes have exactly 110 for each vCPU, and one."""


def reserved_cpu_millis(vcpus: int) -> int:
    """Thousandths of a CPU that the kubelet of an EKS node with ``vcpus`` keeps from pods: 80 of 4,000, 550 of 192,000."""
    reserved = 0.0
    for count, each in _CPU_RESERVED:
        taken = min(vcpus, count)
        reserved, vcpus = reserved + taken * each, vcpus - taken
    return round(reserved)


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """One EC2 instance type with GPUs. Counts and sizes are the API's (DescribeInstanceTypes)."""

    name: str
    gpu: str
    """Product name of the GPU, e.g. ``H100``."""
    gpus: int
    gpu_memory_mib: int
    """Memory of one GPU in MiB."""
    efa_interfaces: int
    """EfaInfo.MaximumEfaInterfaces; 0: no EFA."""
    network_cards: int
    """NetworkInfo.MaximumNetworkCards."""
    interfaces_per_card: int
    """Largest number of interfaces on one card."""
    addresses_per_interface: int
    """NetworkInfo.Ipv4AddressesPerInterface."""
    vcpus: int
    memory_mib: int
    nvme_gb: int
    """Local NVMe in GB, all disks together."""
    network_gbps: float
    ebs_gbps: float
    peak_bf16_tflops: float
    """Dense bf16 peak of one GPU in TFLOPS, without sparsity."""

    @property
    def efa_on_first_card(self) -> bool:
        """Whether network card 0 takes EFA interfaces. False for p6-b300, whose card 0 is for ordinary traffic."""
        return self.efa_interfaces >= self.network_cards

    def layout(self, wanted: EfaLayout = "auto") -> Literal["classic", "efa-only-dense", "none"]:
        """The layout that ``auto`` means for this type: classic where the first card has EFA, none where no card has."""
        if wanted != "auto":
            return wanted
        if not self.efa_interfaces:
            return "none"
        return "classic" if self.efa_on_first_card else "efa-only-dense"

    def interfaces(self, wanted: EfaLayout = "auto") -> list[Interface]:
        """The interfaces that give this type all its EFA bandwidth, the node's own address first.

        ``classic``: EFA beside the address on the first card, and at device 1 of each further card: never at the card's
        number, as a card knows few device indices (p5: two). ``efa-only-dense``: the address on an interface of its own,
        EFA at device 1 of that card, where it has EFA, and at device 0 of the others.
        Raises `ValueError` for EFA on a type without, and for ``classic`` where the first card has none.
        """
        layout = self.layout(wanted)
        plain = Interface(card=0, device=0, kind="interface")
        if layout == "none":
            return [plain]
        if not self.efa_interfaces:
            raise ValueError(f"{self.name} has no EFA")
        if layout == "classic":
            if not self.efa_on_first_card:
                raise ValueError(f"network card 0 of {self.name} has no EFA")
            rest = [Interface(card=card, device=1, kind="efa-only") for card in range(1, self.efa_interfaces)]
            return [Interface(card=0, device=0, kind="efa"), *rest]
        first = [Interface(card=0, device=1, kind="efa-only")] if self.efa_on_first_card else []
        others = range(1, self.efa_interfaces + 1 - len(first))
        return [plain, *first, *(Interface(card=card, device=0, kind="efa-only") for card in others)]

    def addresses(self, wanted: EfaLayout = "auto") -> int:
        """Addresses of the subnet that a node takes for its interfaces, before any for its pods."""
        return sum(interface.kind != "efa-only" for interface in self.interfaces(wanted))

    def max_pods(self, wanted: EfaLayout = "auto", *, prefix_delegation: bool = False) -> int:
        """Pods that a node has addresses for, within EKS' limit for managed nodes.

        vpc-cni uses the first card alone, and an EFA-only interface there is one that pods cannot have: a p5 with the
        dense layout has room for 51 pods without prefix delegation.
        """
        taken = sum(i.card == 0 and i.kind == "efa-only" for i in self.interfaces(wanted))
        slots = (self.interfaces_per_card - taken) * (self.addresses_per_interface - 1)
        return min(slots * (PREFIX_ADDRESSES if prefix_delegation else 1) + 2, 250 if self.vcpus > MANY_VCPUS else 110)

    @property
    def hugepages_2mib(self) -> int:
        """Huge pages of 2 MiB that EFA's installer sets aside on the node, and no pod gets by asking for memory."""
        return max(self.vcpus * _EFA_PAGES_PER_CPU + 1, _EFA_PAGES_LEAST) if self.efa_interfaces else 0

    @property
    def allocatable_cpu_millis(self) -> int:
        """Thousandths of a CPU that all pods of a node can have."""
        return self.vcpus * 1000 - reserved_cpu_millis(self.vcpus)

    @property
    def allocatable_memory_mib(self) -> int:
        """Memory in MiB that all pods of a node can have, EFA's own huge pages taken off."""
        return self.memory_left(self.hugepages_2mib)

    def memory_left(self, hugepages_2mib: int) -> int:
        """Memory in MiB that all pods of a node can have beside so many huge pages of 2 MiB."""
        pods = self.interfaces_per_card * (self.addresses_per_interface - 1) + 2
        kubelet = _RESERVED_MIB + _RESERVED_MIB_PER_POD * pods + _EVICTION_MIB
        return int(self.memory_mib * _USABLE_MEMORY) - kubelet - 2 * hugepages_2mib


PEAK_BF16_TFLOPS: dict[str, float] = {
    # NVIDIA's figures "with sparsity" are halved where no other is given.
    "A100": 312.0,  # A100 datasheet, SXM: BFLOAT16 Tensor Core 312 | 624 with sparsity
    "H100": 989.0,  # H100 datasheet, SXM: 1,979 with sparsity
    "H200": 989.0,  # H200 datasheet, SXM: 1,979 with sparsity
    "B200": 2250.0,  # HGX B200 (8 GPUs): 36 PFLOPS with sparsity
    "B300": 2250.0,  # HGX B300 (8 GPUs): 36 PFLOPS with sparsity
    "A10G": 70.0,  # A10G datasheet: 70 | 140 with sparsity (the A10, another card, has 125)
    "L4": 121.0,  # L4 datasheet: 242 with sparsity
    "L40S": 362.0,  # L40S datasheet: 362.05 | 733 with sparsity
}
"""Dense bf16 peak of one GPU in TFLOPS by product name, from the maker's datasheets."""


def _type(
    name: str,
    gpu: tuple[int, str, int],
    network: tuple[float, int, int, int, int],
    host: tuple[int, int, int, float],
) -> InstanceType:
    """``gpu``: count, product, MiB each; ``network``: Gbps, EFA interfaces, cards, interfaces per card, IPv4
    addresses per interface; ``host``: vCPUs, memory in MiB, NVMe in GB, EBS in Gbps."""
    return InstanceType(
        name=name,
        gpus=gpu[0],
        gpu=gpu[1],
        gpu_memory_mib=gpu[2],
        network_gbps=network[0],
        efa_interfaces=network[1],
        network_cards=network[2],
        interfaces_per_card=network[3],
        addresses_per_interface=network[4],
        vcpus=host[0],
        memory_mib=host[1],
        nvme_gb=host[2],
        ebs_gbps=host[3],
        peak_bf16_tflops=PEAK_BF16_TFLOPS[gpu[1]],
    )


# fmt: off
INSTANCE_TYPES: dict[str, InstanceType] = {
    t.name: t
    for t in (
        #                         GPUs                   Gbps EFA cards/card IPv4  vCPU       MiB   NVMe   EBS
        _type("p4d.24xlarge",     (8, "A100", 40_960),    (400, 4, 4, 15, 50),    (96, 1_179_648, 8000, 19)),
        _type("p4de.24xlarge",    (8, "A100", 81_920),    (400, 4, 4, 15, 50),    (96, 1_179_648, 8000, 19)),
        _type("p5.4xlarge",       (1, "H100", 81_920),    (100, 1, 1, 4, 30),     (16, 262_144, 3800, 10)),
        _type("p5.48xlarge",      (8, "H100", 81_920),    (3200, 32, 32, 2, 50),  (192, 2_097_152, 30400, 80)),
        _type("p5e.48xlarge",     (8, "H200", 144_384),   (3200, 32, 32, 2, 50),  (192, 2_097_152, 30400, 80)),
        _type("p5en.48xlarge",    (8, "H200", 144_384),   (3200, 16, 16, 4, 50),  (192, 2_097_152, 30400, 100)),
        _type("p6-b200.48xlarge", (8, "B200", 183_359),   (3200, 8, 8, 4, 50),    (192, 2_097_152, 30400, 100)),
        _type("p6-b300.48xlarge", (8, "B300", 275_040),   (6400, 16, 17, 4, 50),  (192, 4_194_304, 30400, 100)),
        _type("g5.8xlarge",       (1, "A10G", 22_888),    (25, 1, 1, 8, 30),      (32, 131_072, 900, 16)),
        _type("g5.12xlarge",      (4, "A10G", 22_888),    (40, 1, 1, 15, 50),     (48, 196_608, 3800, 16)),
        _type("g5.16xlarge",      (1, "A10G", 22_888),    (25, 1, 1, 8, 30),      (64, 262_144, 1900, 16)),
        _type("g5.24xlarge",      (4, "A10G", 22_888),    (50, 1, 1, 15, 50),     (96, 393_216, 3800, 19)),
        _type("g5.48xlarge",      (8, "A10G", 22_888),    (100, 1, 1, 7, 50),     (192, 786_432, 7600, 19)),
        _type("g6.8xlarge",       (1, "L4", 22_888),      (25, 1, 1, 8, 30),      (32, 131_072, 900, 16)),
        _type("g6.12xlarge",      (4, "L4", 22_888),      (40, 1, 1, 8, 30),      (48, 196_608, 3760, 20)),
        _type("g6.16xlarge",      (1, "L4", 22_888),      (25, 1, 1, 15, 50),     (64, 262_144, 1880, 20)),
        _type("g6.24xlarge",      (4, "L4", 22_888),      (50, 1, 1, 15, 50),     (96, 393_216, 3760, 30)),
        _type("g6.48xlarge",      (8, "L4", 22_888),      (100, 1, 1, 15, 50),    (192, 786_432, 7520, 60)),
        _type("g6e.8xlarge",      (1, "L40S", 45_776),    (25, 1, 1, 8, 30),      (32, 262_144, 900, 16)),
        _type("g6e.12xlarge",     (4, "L40S", 45_776),    (100, 1, 1, 10, 30),    (48, 393_216, 3800, 20)),
        _type("g6e.16xlarge",     (1, "L40S", 45_776),    (35, 1, 1, 15, 50),     (64, 524_288, 1900, 20)),
        _type("g6e.24xlarge",     (4, "L40S", 45_776),    (200, 2, 2, 10, 50),    (96, 786_432, 3800, 30)),
        _type("g6e.48xlarge",     (8, "L40S", 45_776),    (400, 4, 4, 10, 50),    (192, 1_572_864, 7600, 60)),
        # Without EFA: for a first try of everything but the network.
        _type("g5.xlarge",        (1, "A10G", 22_888),    (10, 0, 1, 4, 15),     (4, 16_384, 250, 0.7)),
        _type("g5.2xlarge",       (1, "A10G", 22_888),    (10, 0, 1, 4, 15),     (8, 32_768, 450, 0.85)),
        _type("g5.4xlarge",       (1, "A10G", 22_888),    (25, 0, 1, 8, 30),     (16, 65_536, 600, 4.75)),
        _type("g6.xlarge",        (1, "L4", 22_888),      (10, 0, 1, 4, 15),     (4, 16_384, 250, 1)),
        _type("g6.2xlarge",       (1, "L4", 22_888),      (10, 0, 1, 4, 15),     (8, 32_768, 450, 2)),
        _type("g6.4xlarge",       (1, "L4", 22_888),      (25, 0, 1, 8, 30),     (16, 65_536, 600, 8)),
        _type("g6e.xlarge",       (1, "L40S", 45_776),    (20, 0, 1, 4, 15),     (4, 32_768, 250, 1)),
        _type("g6e.2xlarge",      (1, "L40S", 45_776),    (20, 0, 1, 4, 15),     (8, 65_536, 450, 2)),
        _type("g6e.4xlarge",      (1, "L40S", 45_776),    (20, 0, 1, 8, 30),     (16, 131_072, 600, 8)),
    )
}
# fmt: on
"""By name: the p4 to p6 types for training, and all sizes of g5, g6 and g6e. Where EC2 says "Up to", Gbps is that."""
