"""Layers that several networks share: the choice of normalization, and checks of settings."""

from __future__ import annotations

from torch import nn

from tinysubnets.errors import SettingError, unknown

NORMS = ("batch", "group", "none")


def check_norm(norm: str) -> None:
    """Refuse a kind of normalization that does not exist."""
    if norm not in NORMS:
        raise SettingError(unknown("norm", norm, NORMS))


def norm2d(norm: str, channels: int, affine: bool = True) -> nn.Module:
    """The normalization after a convolution; groups of about 16 channels for `group`.

    - `affine`: whether it has a scale and a shift of its own.
    """
    check_norm(norm)
    if norm == "batch":
        return nn.BatchNorm2d(channels, affine=affine)
    if norm == "group":
        num_groups = max(g for g in range(1, channels // 16 + 2) if channels % g == 0)
        return nn.GroupNorm(num_groups, channels, affine=affine)
    return nn.Identity()


def norm1d(norm: str, features: int, affine: bool = True) -> nn.Module:
    """The normalization after a linear layer; one group of all features for `group`.

    - `affine`: whether it has a scale and a shift of its own.
    """
    check_norm(norm)
    if norm == "batch":
        return nn.BatchNorm1d(features, affine=affine)
    if norm == "group":
        return nn.LayerNorm(features, elementwise_affine=affine)
    return nn.Identity()


def drop(rate: float, scale: float) -> nn.Module:
    """Dropout at `rate * scale`; nothing at all where that is zero, so no generator is touched."""
    if not 0.0 <= rate * scale < 1.0:
        raise SettingError(
            f"dropout={scale} makes a rate of {rate * scale:g}; rates lie in [0, 1). "
            "The setting scales the network's own rates: 1 keeps them, 0 turns dropout off."
        )
    return nn.Dropout(rate * scale) if rate * scale > 0 else nn.Identity()
