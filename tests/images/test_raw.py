"""A distro is raw bytes: no container is looked for, and of a GPT only the disk's own GUID counts."""

from __future__ import annotations

import uuid
from pathlib import Path

import msgspec
import pytest

from harness.images import DISK_GUID, Images
from nvx_ref.errors import Malformed
from nvx_ref.images import ImageFormat, inspect_image, verify_distro
from nvx_ref.plan import layer_token

EROFS = ImageFormat.EROFS
FOOTER = b"conectix".ljust(512, b"\0")


@pytest.mark.spec("622.scope2.b")
def test_a_container_is_no_raw_image_and_its_footer_is_not_looked_at(erofs: Path) -> None:
    erofs.chmod(0o644)
    raw = erofs.read_bytes()
    plain = inspect_image(str(erofs), EROFS)
    # A fixed VHD is raw bytes and a footer: bytes like any others, which nobody takes off.
    erofs.write_bytes(raw + FOOTER)
    assert verify_distro(str(erofs), format=EROFS).image.length == len(raw) + len(FOOTER)
    assert inspect_image(str(erofs), EROFS) == plain
    assert erofs.read_bytes() == raw + FOOTER
    for container in (FOOTER + raw, b"QFI\xfb\0\0\0\3".ljust(512, b"\0") + raw):
        erofs.write_bytes(container)
        with pytest.raises(Malformed) as caught:
            verify_distro(str(erofs), format=EROFS)
        assert caught.value.detail == "magic"
        assert erofs.read_bytes() == container


@pytest.mark.spec("622.scope2.d")
def test_a_partition_s_guid_identifies_nothing(images: Images) -> None:
    with Path(images.gpt).open("rb") as disk:
        disk.seek(2 * 512 + 16)
        partition = str(uuid.UUID(bytes_le=disk.read(16)))
    assert uuid.UUID(partition).int
    with pytest.raises(Malformed, match=f"its identity is {DISK_GUID}"):
        verify_distro(images.gpt, format=ImageFormat.GPT, identity=partition)
    header = inspect_image(images.gpt, ImageFormat.GPT)
    binding = verify_distro(images.gpt, format=ImageFormat.GPT, identity=header.identity)
    assert layer_token(binding.format, binding.identity) == f"nvx_layer=distro,0xd0003000,gpt:{DISK_GUID}"
    assert partition not in msgspec.json.encode([header, binding]).decode()
