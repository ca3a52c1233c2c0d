"""Buckets as folders: the account's objects, written where the nodes can see them.

A node's agent reaches no account: it asks by a file, and the daemon answers by removing it. So a pod's mount shows
what the bucket held when the pod started; Mountpoint on a real node would show later objects too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REQUESTS, ERRORS, STATE = ".requests", ".errors", ".state"
POLL_SECONDS = 0.1
LIMIT_SECONDS = 20.0


class BucketError(RuntimeError):
    """A bucket cannot be shown; the message says why."""


async def bucket_folder(root: Path, bucket: str, limit_seconds: float = LIMIT_SECONDS) -> Path:
    """The folder with the objects that ``bucket`` has now. Raises `BucketError`."""
    request, error = root / REQUESTS / bucket, root / ERRORS / bucket
    request.parent.mkdir(parents=True, exist_ok=True)
    error.unlink(missing_ok=True)
    request.touch()
    deadline = time.monotonic() + limit_seconds
    while request.exists():
        if time.monotonic() > deadline:
            raise BucketError(f"bucket {bucket!r}: the account gave no answer within {limit_seconds:.0f} s")
        await asyncio.sleep(POLL_SECONDS)
    with contextlib.suppress(FileNotFoundError):
        raise BucketError(error.read_text())
    return root / bucket


class BucketMirror:
    """Answers requests below ``root`` from the account of ``s3``, a boto3 client, until it is stopped."""

    def __init__(self, root: Path, s3: Callable[[], Any]) -> None:
        self._root = root
        self._s3 = s3
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="buckets", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            self.answer()

    def answer(self) -> None:
        """Answer what is asked for now."""
        folder = self._root / REQUESTS
        for request in sorted(folder.iterdir()) if folder.is_dir() else []:
            try:
                self._mirror(request.name)
            except Exception as error:  # noqa: BLE001 (whatever it is, the pod's event tells it)
                path = self._root / ERRORS / request.name
                path.parent.mkdir(exist_ok=True)
                path.write_text(f"bucket {request.name!r}: {error}")
            request.unlink(missing_ok=True)

    def _mirror(self, bucket: str) -> None:
        s3 = self._s3()
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        objects = {item["Key"]: item["ETag"] for page in pages for item in page.get("Contents", [])}
        folder, state = self._root / bucket, self._root / STATE / f"{bucket}.json"
        folder.mkdir(parents=True, exist_ok=True)
        state.parent.mkdir(exist_ok=True)
        had: dict[str, str] = json.loads(state.read_text()) if state.exists() else {}
        for key in had.keys() - objects.keys():
            (folder / key).unlink(missing_ok=True)
        for key, etag in objects.items():
            path = folder / key
            if ".." in Path(key).parts or key.startswith("/") or (had.get(key) == etag and path.exists()):
                continue
            if key.endswith("/"):
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._root / STATE / "part"
            with temporary.open("wb") as file:
                shutil.copyfileobj(s3.get_object(Bucket=bucket, Key=key)["Body"], file)
            temporary.replace(path)
        state.write_text(json.dumps(objects))
