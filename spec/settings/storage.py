"""Settings of storage and of the trainer's image."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from eks_fsdp.spec.base import Strict

from .common import KmsKeyArn, Name

Bucket = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]


class DataRepositorySettings(Strict):
    """A bucket whose objects are files of the file system."""

    bucket: Bucket
    """S3 bucket in the stack's region."""
    prefix: str = ""
    """Objects below this prefix only."""
    path: str = Field(default="/data", pattern=r"^/[A-Za-z0-9._/-]+$")
    """Folder of the file system under which they appear."""
    export: bool = False
    """Whether new and changed files go back to the bucket."""


class S3MountSettings(Strict):
    """A bucket that pods read as a folder. Read-only: a mounted bucket can neither rename nor append."""

    bucket: Bucket
    """S3 bucket."""
    prefix: str = ""
    """Objects below this prefix only."""
    path: str = Field(pattern=r"^/[A-Za-z0-9._/-]+$")
    """Where pods find it, such as ``/mnt/models``."""
    kms_key_arn: KmsKeyArn | None = None
    """Key that the objects are encrypted with; None: S3's own."""


class StorageSettings(Strict):
    """Where checkpoints are kept, and where models and data come from."""

    mode: Literal["fsx", "existing", "none"] = "none"
    """``fsx``: an FSx for Lustre file system; ``existing``: the claim `claim` is there already; ``none``: no checkpoints."""
    file_system_id: str | None = Field(default=None, pattern=r"^fs-[0-9a-f]{8,17}$")
    """An FSx for Lustre file system that is there already; None: a new one."""
    capacity_gib: int = Field(default=1200, ge=1200)
    """Size of a new file system in GiB: 1200 or a multiple of 2400."""
    throughput: Literal[125, 250, 500, 1000] = 125
    """MB/s for each TiB of a new file system."""
    claim: Name = "checkpoints"
    """Name of the PersistentVolumeClaim in the jobs' namespaces."""
    data_repository: DataRepositorySettings | None = None
    """A bucket behind the file system."""
    s3_mounts: dict[Name, S3MountSettings] = {}
    """Buckets with models and data, by a name of your own."""
    checkpoint_bucket: Bucket | None = None
    """Bucket that jobs may write ``s3://BUCKET/NAMESPACE/...`` checkpoints to."""
    checkpoint_kms_key_arn: KmsKeyArn | None = None
    """Key that the objects of `checkpoint_bucket` are encrypted with; None: S3's own."""
    kms_key_arn: KmsKeyArn | None = None
    """Key of a new file system; None: FSx' own."""
    retain: bool | None = None
    """Whether a new file system is protected: nothing deletes or replaces it. None: yes, but for an ephemeral stack."""

    @model_validator(mode="after")
    def _fits_together(self) -> StorageSettings:
        if self.capacity_gib != 1200 and self.capacity_gib % 2400:
            raise ValueError(f"capacity_gib: {self.capacity_gib} is not offered; accepted: 1200, or a multiple of 2400")
        for setting in ("file_system_id", "data_repository"):
            if self.mode != "fsx" and getattr(self, setting) is not None:
                raise ValueError(f"{setting}: goes with storage.mode 'fsx' only, and that is {self.mode!r}")
        if self.file_system_id is not None and self.kms_key_arn is not None:
            raise ValueError("kms_key_arn: goes with a new file system, and file_system_id names one that is there")
        if self.checkpoint_kms_key_arn is not None and self.checkpoint_bucket is None:
            raise ValueError("checkpoint_kms_key_arn: goes with checkpoint_bucket, and that is not set")
        return self

    def retained(self, ephemeral: bool) -> bool:
        """Whether the file system outlives the stack, which is ``ephemeral`` or not."""
        return not ephemeral if self.retain is None else self.retain

    def used(self) -> StorageSettings:
        """The same storage as a stack of jobs sees it: all of it is there already."""
        mode = self.mode if self.mode == "none" else "existing"
        return self.model_copy(
            update={"mode": mode, "file_system_id": None, "data_repository": None, "kms_key_arn": None, "retain": None}
        )


class ImageSettings(Strict):
    """Where the trainer's image comes from."""

    repository: str | None = None
    """Repository without a tag; None: the ECR repository that the program makes."""
    tag: str = Field(default="0.1.0", pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")
    """Tag of the image; never ``latest``."""
    digest: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$")
    """Digest of the image; what `eks-fsdp image build` prints. It wins over the tag."""
    codebuild: bool = False
    """Whether the program makes a CodeBuild project, for `eks-fsdp image build --with codebuild` where there is no Docker."""
    kms_key_arn: KmsKeyArn | None = None
    """Key that encrypts the program's repository; None: ECR's own (AES-256)."""

    @model_validator(mode="after")
    def _pinned(self) -> ImageSettings:
        if self.tag == "latest":
            raise ValueError("tag: 'latest' is not a version; accepted: an immutable tag")
        for setting in ("codebuild", "kms_key_arn"):
            if self.repository and getattr(self, setting):
                raise ValueError(f"{setting}: goes with the program's own repository, and image.repository is set")
        return self

    def used(self) -> ImageSettings:
        """The same image as a stack of jobs names it."""
        return self.model_copy(update={"codebuild": False, "kms_key_arn": None})

    @property
    def chosen(self) -> bool:
        """Whether the settings say which image: a digest, a tag other than the default, or a repository of the user's own."""
        return bool(self.repository or self.digest) or self.tag != type(self).model_fields["tag"].default

    @property
    def version(self) -> str:
        """What follows the repository: ``@sha256:...`` or ``:tag``."""
        return f"@{self.digest}" if self.digest else f":{self.tag}"
