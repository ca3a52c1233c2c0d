"""``python -m eks_fsdp.sandbox.toolchain``: set the toolchain up and print its folder."""

from __future__ import annotations

import sys

from .install import ToolchainError, ensure_toolchain


def main() -> int:
    """Returns the exit status."""
    try:
        folder = ensure_toolchain(lambda line: print(line, file=sys.stderr, flush=True))
    except ToolchainError as error:
        print(f"eks-fsdp: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
