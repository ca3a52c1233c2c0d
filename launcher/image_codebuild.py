"""CodeBuild's part of `image build`: upload the files, start the build, follow its log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eks_fsdp.spec.names import IMAGE_BASE_VARIABLE, IMAGE_BUILD_VARIABLE

from .errors import UserError

POLL_SECONDS = 3.0


def build_in_aws(
    client: Callable[[str], Any],
    project: str,
    bucket: str,
    content: bytes,
    image: str,
    base: str,
    log: Path,
    on_line: Callable[[str], None],
    poll_seconds: float = POLL_SECONDS,
) -> None:
    """Build ``content``, a zip archive, as ``image``; ``client`` gives boto3 clients by service.

    What the build prints goes to ``log`` and ``on_line``. An interrupt stops the build. Raises `UserError`.
    """
    from botocore.exceptions import ClientError

    key = f"{image.rpartition(':')[2]}.zip"
    try:
        client("s3").put_object(Bucket=bucket, Key=key, Body=content)
        variables = {IMAGE_BUILD_VARIABLE: image, IMAGE_BASE_VARIABLE: base}
        build = client("codebuild").start_build(
            projectName=project,
            sourceTypeOverride="S3",
            sourceLocationOverride=f"{bucket}/{key}",
            environmentVariablesOverride=[
                {"name": name, "value": value, "type": "PLAINTEXT"} for name, value in variables.items()
            ],
        )["build"]
    except ClientError as error:
        details = error.response["Error"]
        raise UserError(f"{error.operation_name}: {details['Code']}: {details.get('Message', '')}") from None
    log.write_text("")
    events = _Events(client("logs"), log, on_line)
    try:
        while True:
            build = client("codebuild").batch_get_builds(ids=[build["id"]])["builds"][0]
            events.show(build)
            if build.get("buildComplete") or build["buildStatus"] != "IN_PROGRESS":
                break
            on_line(f"{build.get('currentPhase', 'QUEUED').lower()} {events.last}")
            time.sleep(poll_seconds)
    except BaseException:
        # Also where this machine lost its network: a build that nobody waits for costs until its limit.
        with contextlib.suppress(Exception):
            client("codebuild").stop_build(id=build["id"])
        raise
    if build["buildStatus"] != "SUCCEEDED":
        failed = [p["phaseType"] for p in build.get("phases", []) if p.get("phaseStatus") not in (None, "SUCCEEDED")]
        where = f" in phase {failed[0]}" if failed else ""
        raise UserError(
            f"build {build['id']} ended {build['buildStatus']}{where}: {events.last or 'no message'}; its log is {log}"
        )


class _Events:
    """What a build has printed, as far as it has not been shown."""

    def __init__(self, logs: Any, file: Path, on_line: Callable[[str], None]) -> None:
        self._logs = logs
        self._file = file
        self._on_line = on_line
        self._token: str | None = None
        self.last = ""

    def show(self, build: dict[str, Any]) -> None:
        """Everything new. The stream comes with the build's first phases."""
        from botocore.exceptions import ClientError

        where = build.get("logs") or {}
        if not where.get("groupName") or not where.get("streamName"):
            return
        while True:
            more = {"nextToken": self._token} if self._token else {}
            try:
                answer = self._logs.get_log_events(
                    logGroupName=where["groupName"], logStreamName=where["streamName"], startFromHead=True, **more
                )
            except ClientError as error:
                if error.response["Error"]["Code"] == "ResourceNotFoundException":
                    return
                raise UserError(f"the build's log: {error.response['Error'].get('Message', error)}") from None
            with self._file.open("a") as file:
                for event in answer["events"]:
                    text = event["message"].rstrip()
                    file.write(text + "\n")
                    if text.strip():
                        self.last = text.strip()
                        self._on_line(self.last)
            if answer["nextForwardToken"] == self._token or not answer["events"]:
                return
            self._token = answer["nextForwardToken"]
