"""Images whose pixels are in another order, made as they are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

COPIED_BYTES = 1 << 30  # of images that are copied to a GPU once for all tasks


class RearrangedInputs:
    """Images with their pixels in another order, the same in all channels.

    - `images`: [samples, channels, height, width].
    - `order`: where each pixel comes from, int64 [height * width].
    - `copies`: the images by device, as far as they were needed there; all tasks of the same images
      share them.
    """

    def __init__(
        self, images: np.ndarray, order: np.ndarray, copies: dict[torch.device, Tensor]
    ) -> None:
        self.images, self.order, self.copies = images, order, copies

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, where: Any, /) -> np.ndarray:
        picked = np.asarray(self.images[where])  # in memory from here on
        height, width = picked.shape[-2:]
        flat = picked.reshape(*picked.shape[:-2], height * width)
        # Without the check of every index, which "clip" leaves out, this is seven times faster.
        return np.take(flat, self.order, axis=-1, mode="clip").reshape(picked.shape)

    def on(self, where: Tensor, device: torch.device) -> Tensor:
        """The images at some positions, on a device: a GPU rearranges its own copy of them."""
        if device.type == "cpu" or self.images.nbytes > COPIED_BYTES:
            return torch.from_numpy(self[where.numpy()]).to(device)
        if device not in self.copies:
            self.copies[device] = torch.from_numpy(self.images).to(device)
        picked = self.copies[device][where.to(device)]
        order = torch.from_numpy(self.order).to(device)
        return picked.flatten(2).index_select(2, order).view(picked.shape)
