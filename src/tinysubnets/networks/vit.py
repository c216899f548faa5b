"""A small vision transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from tinysubnets.errors import SettingError
from tinysubnets.networks.layers import drop


class Attention(nn.Module):
    """Multi-head self-attention from two plain linear layers.

    `nn.MultiheadAttention` switches to a fused path without gradients, whose logits differ in the
    last bits from those of training; here both take the same path.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The tokens' new values, from all tokens of the same image."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


class EncoderBlock(nn.Module):
    """Attention and a two-layer network, each normalized before and added to its input."""

    def __init__(self, width: int, heads: int, mlp_ratio: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, mlp_ratio * width)
        self.gelu = nn.GELU()
        self.fc2 = nn.Linear(mlp_ratio * width, width)
        self.drop = drop(1.0, dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output for a batch of token sequences."""
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.fc2(self.gelu(self.fc1(self.norm2(x)))))


class VisionTransformer(nn.Module):
    """Patches to tokens, encoder blocks, and a head on the class token."""

    def __init__(
        self, patches: nn.Conv2d, num_tokens: int, blocks: list[EncoderBlock], classes: int
    ) -> None:
        super().__init__()
        width = patches.out_channels
        self.patches = patches
        # A leading dimension of 1 makes both task-specific.
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, num_tokens + 1, width))
        nn.init.trunc_normal_(self.position, std=0.02)
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of a batch of images."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        token = self.class_token.expand(tokens.shape[0], -1, -1)
        x = torch.cat([token, tokens], dim=1) + self.position
        return self.fc(self.norm(self.blocks(x)[:, 0]))


def vit(
    classes: int = 10,
    in_channels: int = 3,
    image_size: int = 32,
    patch_size: int = 4,
    width: int = 128,
    depth: int = 4,
    heads: int = 4,
    mlp_ratio: int = 2,
    dropout: float = 0.0,
) -> nn.Module:
    """A vision transformer with a task-specific class token and positions.

    - `classes`: outputs of the head; every task gets a head of its own width.
    - `in_channels`, `image_size`: of the images, 1 for gray and 3 for color; their side in pixels.
    - `patch_size`: the side of a patch in pixels.
    - `width`, `depth`, `heads`: numbers in a token, encoder blocks, and attention heads of each.
    - `mlp_ratio`: the width of a block's inner layer over that of a token.
    - `dropout`: the rate in every block.
    """
    if image_size % patch_size:
        raise SettingError(
            f"patch_size={patch_size} does not divide image_size={image_size}; choose a divisor."
        )
    if width % heads:
        raise SettingError(f"heads={heads} does not divide width={width}; choose a divisor.")
    patches = nn.Conv2d(in_channels, width, patch_size, stride=patch_size)
    blocks = [EncoderBlock(width, heads, mlp_ratio, dropout) for _ in range(depth)]
    return VisionTransformer(patches, (image_size // patch_size) ** 2, blocks, classes)
