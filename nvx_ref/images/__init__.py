"""Images and artifacts: seals, explicit verification, bindings, checked files.

A staged launch calls :func:`check_binding`, :func:`check_scratch` and :func:`check_plain`: they open and stat, and read
nothing. Everything that reads content is named ``verify`` or ``read`` and runs only when somebody asks for it.
"""

from __future__ import annotations

from nvx_ref.images.artifacts import (
    Artifacts,
    Layout,
    explicit_artifacts,
    find_artifacts,
    read_identity,
)
from nvx_ref.images.checked import CheckedFile, check_plain, seal_of
from nvx_ref.images.distro import (
    POLICY_REVISION,
    DistroBinding,
    DistroHeader,
    ImageFormat,
    PolicyResult,
    check_binding,
    check_entrypoint,
    check_staged,
    import_binding,
    inspect_image,
    parse_identity,
    read_header,
    seal_manifest,
    verify_distro,
)
from nvx_ref.images.scratch import ScratchBinding, check_scratch, verify_scratch
from nvx_ref.platform.contract import FileSeal

__all__ = [
    "POLICY_REVISION",
    "Artifacts",
    "CheckedFile",
    "DistroBinding",
    "DistroHeader",
    "FileSeal",
    "ImageFormat",
    "Layout",
    "PolicyResult",
    "ScratchBinding",
    "check_binding",
    "check_entrypoint",
    "check_plain",
    "check_scratch",
    "check_staged",
    "explicit_artifacts",
    "find_artifacts",
    "import_binding",
    "inspect_image",
    "parse_identity",
    "read_header",
    "read_identity",
    "seal_manifest",
    "seal_of",
    "verify_distro",
    "verify_scratch",
]
