"""A machine room that remembers what it was asked, and does it at once."""

from __future__ import annotations

from typing import Any

from eks_fsdp.sandbox.machine_room import MachineRoomError


class FakeMachineRoom:
    """One control plane at a time, as the real one."""

    def __init__(self) -> None:
        self.plane: str | None = None
        self.groups: dict[str, dict[str, Any]] = {}
        self.broken = ""

    def create_control_plane(self, name: str, version: str, host: str, port: int) -> dict[str, Any]:
        self._check()
        if self.plane is not None:
            raise MachineRoomError(f"the machine room refused POST /control-planes: {self.plane} is live", 409)
        self.plane = name
        return {"name": name, "ca_pem": "-----BEGIN CERTIFICATE-----\n", "admin_token": f"token-of-{name}"}

    def delete_control_plane(self, name: str) -> None:
        self._check()
        self.plane = None
        self.groups.clear()

    def put_node_group(self, group: str, spec: dict[str, Any]) -> None:
        self._check()
        self.groups[group] = spec

    def delete_node_group(self, group: str) -> None:
        self._check()
        del self.groups[group]

    def _check(self) -> None:
        if self.broken:
            raise MachineRoomError(self.broken)
