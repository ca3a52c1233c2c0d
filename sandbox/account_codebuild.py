"""CodeBuild of the stand-in account: a build runs nothing, and ends with an image in ECR as a real one would.

The image is a record: its digest is made of source and tag, and there are no layers behind it.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

from moto.codebuild.responses import CodeBuildResponse
from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.ecr.models import ecr_backends
from moto.logs.models import logs_backends
from moto.s3.models import s3_backends

from eks_fsdp.spec.names import IMAGE_BUILD_VARIABLE

from .account_errors import Refusal

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def manifest(content: str) -> str:
    """JSON of an image's manifest that changes with ``content``."""
    digest = hashlib.sha256(content.encode()).hexdigest()
    config = {"mediaType": "application/vnd.docker.container.image.v1+json", "size": 1, "digest": f"sha256:{digest}"}
    return json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": []}, sort_keys=True)


def manifest_digest(text: str) -> str:
    """The digest by which a registry knows a manifest."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


class SandboxCodeBuildResponse(CodeBuildResponse):
    """moto's CodeBuild, whose builds read their source, write a log and push."""

    def update_project(self) -> ActionResult:
        """UpdateProject: what is given takes the place of what was."""
        name = self._get_param("name")
        if name not in self.codebuild_backend.codebuild_projects:
            raise Refusal("ResourceNotFoundException", f"Project cannot be found: {name}")
        project = self.codebuild_backend.codebuild_projects[name].project_metadata
        project |= self._get_params()
        return ActionResult({"project": project})

    def start_build(self) -> ActionResult:
        """StartBuild. Refuses a source that is not there."""
        location = str(self._get_param("sourceLocationOverride") or "")
        bucket, _, key = location.partition("/")
        found = s3_backends[self.current_account]["aws"].buckets.get(bucket)
        if location and (found is None or key not in found.keys):
            raise Refusal("InvalidInputException", f"Not authorized or no such source: {location}")
        answer: Any = super().start_build()
        build: dict[str, Any] = answer.result["build"]
        variables = {v["name"]: v["value"] for v in self._get_param("environmentVariablesOverride") or []}
        lines, status = self._push(location, variables.get(IMAGE_BUILD_VARIABLE, ""))
        build["logs"] = self._log(build, lines)
        build["_outcome"] = status
        return ActionResult(answer.result)

    def _push(self, source: str, image: str) -> tuple[list[str], str]:
        repository, _, tag = image.partition("/")[2].rpartition(":")
        lines = [f"source {source}", f"docker build --tag {image} (the stand-in builds nothing)"]
        try:
            text = manifest(f"{source} {tag}")
            made = ecr_backends[self.current_account][self.region].put_image(
                repository, text, tag, MANIFEST, manifest_digest(text)
            )
        except ServiceException as error:
            return [*lines, f"docker push: {error.message}"], "FAILED"
        except Exception as error:  # noqa: BLE001 (moto raises a bare one for a repository that is not there)
            return [*lines, f"docker push: denied: {error}"], "FAILED"
        return [*lines, f"{tag}: digest: {made.get_image_digest()}"], "SUCCEEDED"

    def _log(self, build: dict[str, Any], lines: list[str]) -> dict[str, Any]:
        project = self.codebuild_backend.codebuild_projects[build["projectName"]].project_metadata
        where = (project.get("logsConfig") or {}).get("cloudWatchLogs") or {}
        group = str(where.get("groupName") or f"/aws/codebuild/{build['projectName']}")
        stream = build["id"].partition(":")[2]
        backend = logs_backends[self.current_account][self.region]
        if group not in backend.groups:
            backend.create_log_group(group, {})
        backend.create_log_stream(group, stream)
        now = int(time.time() * 1000)
        backend.put_log_events(group, stream, [{"timestamp": now, "message": line} for line in lines])
        return {"groupName": group, "streamName": stream}

    def batch_get_builds(self) -> ActionResult:
        """BatchGetBuilds: moto says that every build has succeeded."""
        answer: Any = super().batch_get_builds()
        for build in answer.result["builds"]:
            build["buildComplete"] = True
            if build.get("_outcome") == "FAILED":
                build["buildStatus"] = "FAILED"
                for phase in build["phases"]:
                    if phase["phaseType"] == "POST_BUILD":
                        phase["phaseStatus"] = "FAILED"
        return ActionResult(answer.result)
