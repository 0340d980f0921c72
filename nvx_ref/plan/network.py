"""Network policy as data. Its lowering to options is the next change; a plan with one is refused until then."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class NetworkMode(StrEnum):
    """What a sandbox may reach."""

    ALLOW = "allow"
    DENY = "deny"
    PROXY_ONLY = "proxy-only"


class NetworkPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """A sandbox's network.

    Args:
        mode: The default for what no rule names, or proxy-only.
        address: The guest's address and prefix.
        allow: Rules that let pass, sorted.
        deny: Rules that refuse, sorted; they win.
        proxy: The one TCP endpoint of proxy-only networking, as ADDRESS:PORT.
    """

    mode: NetworkMode
    address: str = "10.0.0.2/24"
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    proxy: str | None = None
