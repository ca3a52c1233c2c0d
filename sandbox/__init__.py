"""The whole chain on one machine: stand-in AWS, a real control plane, a node agent. See docs/sandbox.md."""
