"""Service names in /etc/hosts."""

from __future__ import annotations

from typing import Any

from eks_fsdp.sandbox.hosts import hosts_file, own_names, ready_endpoints, service_lines


def slice_of(service: str, *endpoints: dict[str, Any], namespace: str = "n") -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": service}
    return {
        "metadata": {"namespace": namespace, "labels": labels},
        "addressType": "IPv4",
        "endpoints": list(endpoints),
    }


def endpoint(address: str, *, ready: bool = True, hostname: str = "") -> dict[str, Any]:
    named = {"hostname": hostname} if hostname else {}
    return {"addresses": [address], "conditions": {"ready": ready}, **named}


def test_only_ready_endpoints_count() -> None:
    found = ready_endpoints([slice_of("s", endpoint("10.0.0.2"), endpoint("10.0.0.1", ready=False))])
    assert found == {("n", "s"): [("10.0.0.2", "")]}


def test_a_service_has_one_address_and_a_headless_one_all_of_them() -> None:
    endpoints = ready_endpoints([slice_of("s", endpoint("10.0.0.2"), endpoint("10.0.0.1"))])
    names = "s s.n s.n.svc s.n.svc.cluster.local"
    assert service_lines("n", endpoints, set()) == [f"10.0.0.1 {names}"]
    assert service_lines("n", endpoints, {("n", "s")}) == [f"10.0.0.1 {names}", f"10.0.0.2 {names}"]


def test_the_short_name_is_for_the_same_namespace_only() -> None:
    endpoints = ready_endpoints([slice_of("s", endpoint("10.0.0.1"))])
    assert service_lines("other", endpoints, set()) == ["10.0.0.1 s.n s.n.svc s.n.svc.cluster.local"]


def test_pods_with_a_host_name_have_names_of_their_own() -> None:
    endpoints = ready_endpoints([slice_of("s", endpoint("10.0.0.1", hostname="w-0"))])
    assert "10.0.0.1 w-0.s w-0.s.n w-0.s.n.svc w-0.s.n.svc.cluster.local" in service_lines("n", endpoints, set())


def test_the_whole_file() -> None:
    pod = {"metadata": {"name": "p", "namespace": "n"}, "spec": {"hostname": "w-0", "subdomain": "s"}}
    name, names = own_names(pod)
    text = hosts_file("10.0.0.5", names, [{"ip": "1.2.3.4", "hostnames": ["x", "y"]}], ["10.0.0.1 s"])
    assert name == "w-0"
    assert text.splitlines()[2:] == ["10.0.0.5 w-0.s.n.svc.cluster.local w-0", "1.2.3.4 x y", "10.0.0.1 s"]
    assert text.endswith("\n")
