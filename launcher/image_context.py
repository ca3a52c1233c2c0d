"""What the trainer's image is made of: the files, and the tag that changes with them. Pure but for reading the files."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

from .errors import UserError

CONTENT = (
    "pyproject.toml",
    "requirements/constraints.txt",
    "src/eks_fsdp/__init__.py",
    "src/eks_fsdp/py.typed",
    "spec/**/*.py",
    "trainer/**/*.py",
    "trainer/Dockerfile",
)
"""Patterns of the files, as in ``.dockerignore``. Nothing else is ever sent to a builder: no key, no data, no git history."""
FILE_MODE = 0o644
ARCHIVE_TIME = (1980, 1, 1, 0, 0, 0)
"""Of every file in an archive: equal files make an equal archive."""
Files = Mapping[str, bytes]
"""Relative path, with slashes, -> content."""


def context_files(checkout: Path) -> dict[str, bytes]:
    """The files of the image, sorted by path. Hidden ones are left out. Raises `UserError` where one is missing."""
    found: dict[str, bytes] = {}
    for pattern in CONTENT:
        paths = [path for path in checkout.glob(pattern) if path.is_file()]
        if not paths:
            raise UserError(f"{checkout / pattern}: does not exist; an image is built from a checkout of the project")
        for path in paths:
            name = path.relative_to(checkout).as_posix()
            if not any(part.startswith(".") for part in name.split("/")):
                found[name] = path.read_bytes()
    return dict(sorted(found.items()))


def content_tag(files: Files, base: str) -> str:
    """The tag of what ``files`` on the image ``base`` make: the same for the same content, wherever and whenever it is built."""
    digest = hashlib.sha256()
    for name, content in [("", base.encode()), *sorted(files.items())]:
        # Lengths keep a file's end from passing for the next one's beginning.
        digest.update(f"{len(name)}:{name}:{len(content)}:".encode())
        digest.update(content)
    return f"src-{digest.hexdigest()[:16]}"


def stage(files: Files, folder: Path) -> None:
    """Write the files below ``folder``: the builder sees what was hashed, whatever changes meanwhile."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(FILE_MODE)


def archive(files: Files) -> bytes:
    """The files as a zip archive, equal for equal files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, ARCHIVE_TIME)
            entry.external_attr = FILE_MODE << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(entry, content)
    return buffer.getvalue()
